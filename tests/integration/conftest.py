"""Fixtures of the integration tier only.

Owns: what needs real processes. Shared ones are one folder up.
Never: a test.
"""
