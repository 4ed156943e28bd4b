"""Doubles: what stands in for the world in tests, and the helpers that run real parts.

Owns: scripted models, the stand-in engine, the real Claude Code, a broker of its own, clusters of real processes.
Never: a test, or anything that a part of Corral imports.
"""
