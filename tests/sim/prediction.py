"""How well the wait of a request is foretold when it comes.

Owns: the comparison of what `scheduler.policy` foretells, which learns the lengths of answers as they end, with an
oracle that knows the distribution of each. Both reckon alike, from the same line in the same order; neither knows how
long an answer will be, nor who comes later.
Never: changes what is decided.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from scheduler.policy.outlook import Outlook
from scheduler.policy.waiting import Demand, Times, remaining_ms
from tests.sim.cluster import Fleet, simulate
from tests.sim.figures import quantile
from tests.sim.ours import Job, Ours
from tests.sim.policy import Worker
from tests.sim.request import Request
from tests.sim.workloads import Workload

WARM_UP = 100  # the first requests, of which nobody could have learnt


@dataclass(frozen=True, slots=True)
class Foretold:
    """Waits in ms of one request: as we foretell it, as the oracle does, and as it came."""

    ours_ms: float
    oracle_ms: float
    was_ms: float


class Foretelling(Ours):
    """Our policy, which notes for each request that has to wait what would be said of its wait."""

    def __init__(self, workers: Sequence[Worker], noted: list[Foretold]) -> None:
        super().__init__(workers)
        self._noted = noted
        self._said: dict[int, tuple[float, float]] = {}

    def place(self, request: Request, now_s: float, /) -> Worker:
        worker = super().place(request, now_s)
        if not worker.engine.free and request.number > WARM_UP:
            self._said[request.number] = (
                self._start_ms(worker, request, now_s * 1000, oracle=False),
                self._start_ms(worker, request, now_s * 1000, oracle=True),
            )
        return worker

    def began(self, worker: Worker, request: Request, now_s: float, /) -> None:
        super().began(worker, request, now_s)
        said = self._said.pop(request.number, None)
        if said is not None:
            self._noted.append(Foretold(*said, was_ms=(now_s - request.arrival_s) * 1000))

    def _start_ms(self, worker: Worker, request: Request, now_ms: float, *, oracle: bool) -> float:
        books, line = self.books(worker), self.line(worker, now_ms)
        job = books.line[str(request.number)].waiting
        line = replace(line, waiting=[other for other in line.waiting if other is not job])
        running = [_left(other, now_ms, oracle=oracle) for other in books.running.values()]
        services = {name: _left(other, other.claimed_ms, oracle=oracle) for name, other in books.line.items()}
        return Outlook(line, self.rules, running, services).start_ms(job)


def _left(job: Job, now_ms: float, *, oracle: bool) -> Times:
    place = job.candidate
    token_ms = (place.expected_ms - place.prefill_ms) / job.known.length.mean()
    length = job.request.length if oracle else job.known.length
    return remaining_ms(Demand(job.waiting.id, place.prefill_ms, token_ms, length, now_ms - job.claimed_ms))


@dataclass(frozen=True, slots=True)
class Errors:
    """Of the foretold waits, in seconds; `waits` of them."""

    waits: int
    ours_median_s: float
    ours_p90_s: float
    oracle_median_s: float
    oracle_p90_s: float

    @property
    def ratio(self) -> float:
        """Our median error as a multiple of the oracle's."""
        return self.ours_median_s / self.oracle_median_s if self.oracle_median_s else 1.0


def errors(workload: Workload, load: float, fleet: Fleet, seed: int) -> Errors:
    """How far the foretold waits are off in one run."""
    noted: list[Foretold] = []
    simulate(partial(Foretelling, noted=noted), workload, load, fleet, seed)
    ours = sorted(abs(one.ours_ms - one.was_ms) / 1000 for one in noted)
    oracle = sorted(abs(one.oracle_ms - one.was_ms) / 1000 for one in noted)
    return Errors(
        len(noted), quantile(ours, 0.5), quantile(ours, 0.9), quantile(oracle, 0.5), quantile(oracle, 0.9)
    )  # fmt: skip
