"""Pure functions of a snapshot: admission, priority, ring, placement.

Imports the contract and the standard library's pure parts. Never a clock, a store or chance.
"""
