"""Where a conversation's next request goes.

Owns: the order of candidates and the load up to which each is taken.
Never: counts what is happening now; the store checks the load again, atomically, when it takes the place.

Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2016): the first candidate whose load is
under `bound` times the mean takes the conversation, a free slot before a full worker. Load is the larger of the
requests and the conversations there, per slot: a conversation that thinks for a minute still needs its slot.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.contract import ClusterView, WorkerView
from scheduler.policy.admission import able
from scheduler.policy.ring import preference

NO_LIMIT = -1
MOST_CANDIDATES = 16


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that may take the job while its load is below `limit` (NO_LIMIT: whatever it is)."""

    worker: str
    limit: int
    slots: int


def candidates(view: ClusterView, conversation: str, home: str | None, bound: float) -> tuple[Candidate, ...]:
    """The order in which to try workers; empty when none is able. `bound` >= 1 is the factor on the mean load."""
    workers = {worker.info.name: worker for worker in able(view)}
    if not workers:
        return ()
    weights = [(name, float(len(worker.info.slots) or 1)) for name, worker in workers.items()]
    order = preference(conversation, weights)[:MOST_CANDIDATES]
    mean = (sum(load(worker) for worker in workers.values()) + 1) / sum(weight for _, weight in weights)
    ordered = [_bounded(workers[name], bound * mean) for name in order]
    if home in workers and _bearable(workers[home], workers.values()):
        return (Candidate(home, NO_LIMIT, _slots(workers[home])), *(c for c in ordered if c.worker != home))
    return tuple(ordered)


def only(view: ClusterView, worker: str) -> tuple[Candidate, ...]:
    """That worker and no other, whatever its load; empty when it is not able."""
    return tuple(Candidate(worker, NO_LIMIT, _slots(found)) for found in able(view) if found.info.name == worker)


def choose(view: ClusterView, conversation: str, bound: float) -> str | None:
    """The worker for a job that has to move, from the snapshot alone; None when none is able."""
    workers = {worker.info.name: worker for worker in view.workers}
    able_ones = candidates(view, conversation, None, bound)
    chosen = min(able_ones, key=lambda c: _rank(workers[c.worker], c), default=None)
    return chosen.worker if chosen else None


def _rank(worker: WorkerView, candidate: Candidate) -> tuple[int, float]:
    """The order of `lua/admit.lua` for a job without a home; among equals the candidates' own order holds."""
    free = sum(worker.queued) + worker.running < candidate.slots
    under = load(worker) < candidate.limit
    if under:
        return (0 if free else 2), 0.0
    return (1 if free else 3), load(worker) / candidate.slots


def load(worker: WorkerView) -> int:
    return max(sum(worker.queued) + worker.running, worker.homes)


def _bounded(worker: WorkerView, per_slot: float) -> Candidate:
    return Candidate(worker.info.name, math.ceil(per_slot * _slots(worker)), _slots(worker))


def _bearable(home: WorkerView, workers: Iterable[WorkerView]) -> bool:
    """A home is left only when a whole round of requests waits there while another worker stands idle."""
    if sum(home.queued) < _slots(home):
        return True
    others = [worker for worker in workers if worker is not home]
    return not any(sum(worker.queued) + worker.running < _slots(worker) for worker in others)


def _slots(worker: WorkerView) -> int:
    return len(worker.info.slots) or 1
