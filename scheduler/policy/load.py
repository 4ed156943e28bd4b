"""What is ahead of a job in a worker's line, and how long that takes.

Owns: the expected wait on which placement decides, from one look at the line.
Never: the wait that a client is told (`waiting`), which runs through the line in its order.

A worker's slots serve what is ahead side by side, so the wait is the number of services until a slot is free, times
their mean, over the slots. Inside a level agents take turns: of another agent no more is ahead than of the job's own.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

LOOKED_AT = 32  # jobs of a line that are looked at; the others are taken to be alike


@dataclass(frozen=True, slots=True)
class Ahead:
    """A queued job that is claimed first, or in turns with the one to be placed."""

    level: int
    agent: str
    expected_ms: float


@dataclass(frozen=True, slots=True)
class Load:
    """A worker now: the ms that each running answer still takes, the first jobs of its line in their order, how many
    stand in it, and how many conversations are at home there."""

    running: tuple[float, ...] = ()
    line: tuple[Ahead, ...] = ()
    queued: int = 0
    homes: int = 0


def expected_wait_ms(load: Load, slots: int, level: int, agent: str) -> float:
    """Ms until a slot is free for a job of `agent` that comes now; 0 when one is."""
    ahead, ahead_ms = _ahead(load.line[:LOOKED_AT], level, agent)
    scale = max(1.0, load.queued / LOOKED_AT)
    count = len(load.running) + ahead * scale
    if count < slots:
        return 0.0
    mean_ms = (sum(load.running) + ahead_ms * scale) / count
    return (count - slots + 1) * mean_ms / slots


def _ahead(line: Iterable[Ahead], level: int, agent: str) -> tuple[int, float]:
    mine = sum(1 for job in line if job.level == level and job.agent == agent)
    seen: Counter[str] = Counter()
    count, total_ms = 0, 0.0
    for job in line:
        if job.level > level:
            continue
        if job.level == level:
            seen[job.agent] += 1
            if job.agent != agent and seen[job.agent] > mine + 1:
                continue
        count += 1
        total_ms += job.expected_ms
    return count, total_ms
