"""What is ahead of a job in a worker's line, and how long that takes.

Owns: the expected wait on which placement decides, from one look at the line.
Never: the wait that a client is told (`waiting`), which runs through the line in its order.

A worker's slots serve what is ahead side by side, so the wait is the number of services until a slot is free, times
their mean, over the slots. Inside a level agents take turns: of another agent no more is ahead than of the job's own.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.policy.claiming import MOST_URGENT_LEVEL

LOOKED_AT = 32  # jobs of a line that are looked at; those behind them are taken to be alike


@dataclass(frozen=True, slots=True)
class Ahead:
    """A queued job as the one to be placed sees it; `agent` is its name among those of all keys."""

    level: int
    agent: str
    expected_ms: float


@dataclass(frozen=True, slots=True)
class Load:
    """A worker now: the ms that each running answer still takes, the jobs of its line by level and arrival, how many
    these are, how many conversations are at home there, and how many slots are kept for the urgent levels and not at
    work for them."""

    running: tuple[float, ...] = ()
    line: tuple[Ahead, ...] = ()
    queued: int = 0
    homes: int = 0
    kept: int = 0


def kept_slots(share: float, slots: int, urgent: int) -> int:
    """How many of `slots` other jobs may not have, while `urgent` jobs of the urgent levels run."""
    return max(0, math.floor(share * slots) - urgent)


def expected_wait_ms(load: Load, slots: int, level: int, agent: str) -> float:
    """Ms until a slot is free for a job of `agent` that comes now; 0 when one is."""
    slots -= load.kept if level > MOST_URGENT_LEVEL else 0
    before = [job for job in load.line if job.level <= level]
    ahead, ahead_ms = _ahead(before[:LOOKED_AT], level, agent)
    scale = max(1.0, len(before) / LOOKED_AT)
    count = len(load.running) + ahead * scale
    if count < slots:
        return 0.0
    mean_ms = (sum(load.running) + ahead_ms * scale) / count
    return (count - slots + 1) * mean_ms / slots


def left_ms(expected_ms: float, new_tokens: int, elapsed_ms: float, token_ms: float) -> float:
    """What a running answer still takes: its prefill goes by; of its output, heavy-tailed as lengths are, nobody knows
    better after a while than at its start."""
    prefill_ms = min(new_tokens * token_ms, expected_ms)
    return expected_ms - prefill_ms + max(0.0, prefill_ms - elapsed_ms)


def _ahead(before: Sequence[Ahead], level: int, agent: str) -> tuple[int, float]:
    mine = sum(1 for job in before if job.level == level and job.agent == agent)
    seen: Counter[str] = Counter()
    count, total_ms = 0, 0.0
    for job in before:
        if job.level == level:
            seen[job.agent] += 1
            if job.agent != agent and seen[job.agent] > mine + 1:
                continue
        count += 1
        total_ms += job.expected_ms
    return count, total_ms
