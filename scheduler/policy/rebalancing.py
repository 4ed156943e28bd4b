"""Which queued jobs go to another worker, so that none waits long while others could serve it.

Owns: the choice of jobs and of their new workers from one look at lines and loads.
Never: moves one; moves a job that came within the last second, that may not move, or for less than the margin.

The line of each worker is gone through by level and arrival, so that of those for whom a move pays the one who has
waited longest goes first. Each move is counted before the next is decided. A move pays when the start and the prefill
there come sooner than those here by the margin: a job that has its cache here moves for a long wait only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler.policy.fleet import Fleet
from scheduler.policy.load import Ahead, Load, expected_wait_ms
from scheduler.policy.placement import Candidate, Known, candidate_at, cost_ms

LEAST_AGE_MS = 1000
LONGEST_LINES = 8  # looked at in one go
FEWEST_JOBS = 8  # workers that may take some of theirs


@dataclass(frozen=True, slots=True)
class Queued:
    """A job that waits. `expected_ms` is its service where it stands, `arrival_ms` on the broker's clock."""

    id: str
    known: Known
    expected_ms: float
    arrival_ms: int
    may_move: bool = True

    @property
    def ahead(self) -> Ahead:
        """As the jobs behind it see it."""
        return Ahead(self.known.level, self.known.agent, self.expected_ms)


@dataclass(frozen=True, slots=True)
class Books:
    """A worker now: what each running answer still takes (ms), its line by level and arrival, conversations there,
    and slots kept for the urgent levels."""

    running: tuple[float, ...] = ()
    line: tuple[Queued, ...] = ()
    homes: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A job of `old`, and what it finds at the new worker. Costs: ms until its first token here and there."""

    job: Queued
    old: str
    new: Candidate
    cost_here_ms: float
    cost_there_ms: float


def to_look_at(loads: Mapping[str, tuple[int, int]], slots: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """The workers whose lines are the longest for their slots, and those with the least to do; `loads` holds for each
    worker its queued and its running jobs."""

    def busy(name: str) -> float:
        return sum(loads[name]) / slots[name]

    waiting = [name for name, (queued, _) in loads.items() if queued]
    longest = sorted(waiting, key=lambda name: (-busy(name), name))[:LONGEST_LINES]
    return longest, sorted(loads, key=lambda name: (busy(name), name))[:FEWEST_JOBS]


def moves(
    fleet: Fleet, books: Mapping[str, Books], now_ms: int, margin_ms: float, most_queued: int
) -> tuple[Move, ...]:
    """The moves that pay among the workers in `books`, in the order in which they are to be made."""
    loads = {name: _load(of) for name, of in books.items() if name in fleet.sites}
    made: list[Move] = []
    for old in sorted(loads, key=lambda name: (-len(books[name].line) / fleet.sites[name].slots, name)):
        made += _from(old, fleet, books[old].line, loads, now_ms, margin_ms, most_queued)
    return tuple(made)


def _from(
    old: str, fleet: Fleet, line: Sequence[Queued], loads: dict[str, Load], now_ms: int, margin_ms: float,
    most_queued: int,
) -> list[Move]:  # fmt: skip
    made: list[Move] = []
    stay: list[Ahead] = []
    for job in line:
        move = None
        if job.may_move and now_ms - job.arrival_ms >= LEAST_AGE_MS:
            here = replace(loads[old], line=tuple(stay))
            others = [name for name, load in loads.items() if name != old and load.queued < most_queued]
            move = _best(job, old, here, fleet, loads, others, margin_ms)
        if move is None:
            stay.append(job.ahead)
            continue
        made.append(move)
        loads[move.new.worker] = _with(loads[move.new.worker], job, move.new)
    loads[old] = replace(loads[old], line=tuple(stay), queued=len(stay))
    return made


def _best(
    job: Queued, old: str, here: Load, fleet: Fleet, loads: Mapping[str, Load], others: Sequence[str], margin_ms: float
) -> Move | None:
    wait_ms = expected_wait_ms(here, fleet.sites[old].slots, job.known.level, job.known.agent)
    if wait_ms <= margin_ms:
        return None
    cost_here_ms = wait_ms + candidate_at(fleet, old, job.known).prefill_ms
    fitting = fleet.fitting_prompt(job.known.prompt_tokens).sites
    found = [candidate_at(fleet, name, job.known) for name in others if name in fitting]
    costs = [(cost_ms(one, loads[one.worker], job.known), one.worker, one) for one in found]
    cost, _, best = min(costs, default=(0.0, "", None))
    if best is None or cost + margin_ms >= cost_here_ms:
        return None
    return Move(job, old, best, cost_here_ms, cost)


def _load(books: Books) -> Load:
    return Load(books.running, tuple(job.ahead for job in books.line), len(books.line), books.homes, books.kept)


def _with(load: Load, job: Queued, new: Candidate) -> Load:
    line = sorted([*load.line, replace(job.ahead, expected_ms=new.expected_ms)], key=lambda one: one.level)
    return replace(load, line=tuple(line), queued=load.queued + 1, homes=load.homes + 1)
