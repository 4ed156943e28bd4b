"""The simulator: the real scheduling policies over a cluster that exists only in numbers, in virtual time.

Owns: engines, workloads, the policies that ours is compared with, and the figures. `python -m tests.sim` prints them.
Never: sleeps, reads a clock that decides anything, or draws chance but from a seed: one seed, one result.
"""
