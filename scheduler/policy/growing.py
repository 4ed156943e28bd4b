"""Whether an engine's memory grows without end, so that it is to be restarted before the machine runs out.

Owns: what a row of samples says: the engine stands at its ceiling, or it has grown steadily for an hour.
Never: measures, restarts anything. Times come with the samples.

Memory that is filled once (buffers at their first use, checkpoints of conversations) grows and then stands. So every
sixth of the hour must have added its share, and of each sixth the least counts: a peak is no growth.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

WINDOW_S = 3600.0
PARTS = 6
EVERY_S = 60.0
STEADY = 0.5  # of its share, that each part adds at least
GROWN = 0.05  # of the ceiling, that was added since the start: with less a restart would win nothing
SPARE = 0.05  # of the machine's memory; below it the kernel begins to end processes
APART_S = 600.0  # between two restarts: where they do not help, they must not be all that is done


@dataclass(frozen=True, slots=True)
class Sample:
    """What the engine held at a moment, in bytes that nothing but its end gives back."""

    at_s: float
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that the engine may hold, and the growth in an hour that is taken for a leak; 0: none is."""

    ceiling_bytes: float
    growth_bytes: float


class Growth(StrEnum):
    NONE = "none"
    CEILING = "ceiling"
    STEADY = "steady"


def free_ceiling(held_bytes: float, available_bytes: float, total_bytes: float) -> float:
    """The ceiling where none is set: what the machine could still give it, less a spare part."""
    return held_bytes + available_bytes - SPARE * total_bytes


def judge(samples: Sequence[Sample], least_bytes: float, limits: Limits) -> Growth:
    """What the samples of one life say, oldest first; `least_bytes` is the least that was ever held in it."""
    if not samples:
        return Growth.NONE
    held = samples[-1].held_bytes
    if held >= limits.ceiling_bytes and held - least_bytes >= GROWN * limits.ceiling_bytes:
        return Growth.CEILING
    return Growth.STEADY if limits.growth_bytes and _steady(samples, limits.growth_bytes) else Growth.NONE


def kept(samples: Sequence[Sample]) -> list[Sample]:
    """As many of the samples as a verdict needs: those of the last hour, and one before. Of those that lie closer
    together than EVERY_S, but for the newest, the least stands for all."""
    if not samples:
        return []
    old = sum(samples[-1].at_s - sample.at_s >= WINDOW_S for sample in samples)
    *young, newest = samples[max(0, old - 1) :]
    thinned: list[Sample] = []
    for sample in young:
        if thinned and sample.at_s - thinned[-1].at_s < EVERY_S:
            thinned[-1] = Sample(thinned[-1].at_s, min(thinned[-1].held_bytes, sample.held_bytes))
        else:
            thinned.append(sample)
    return [*thinned, newest]


def _steady(samples: Sequence[Sample], growth_bytes: float) -> bool:
    least = _least_of_parts(samples)
    if len(least) < PARTS or samples[-1].at_s - samples[0].at_s < WINDOW_S:
        return False
    share = growth_bytes / PARTS
    rises = [after - before for before, after in pairwise(least)]
    return sum(rises) >= share * len(rises) and min(rises) >= STEADY * share


def _least_of_parts(samples: Sequence[Sample]) -> list[int]:
    """The least held in each part of the last hour, oldest first; a part without a sample is left out."""
    end_s, part_s = samples[-1].at_s, WINDOW_S / PARTS
    least: dict[int, int] = {}
    for sample in samples:
        age = int((end_s - sample.at_s) / part_s)
        if age < PARTS:
            least[age] = min(sample.held_bytes, least.get(age, sample.held_bytes))
    return [least[age] for age in sorted(least, reverse=True)]
