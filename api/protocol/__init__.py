"""The Anthropic Messages protocol as pure functions: bytes to a request, deltas to events.

Never: a socket, a store, a clock.
"""
