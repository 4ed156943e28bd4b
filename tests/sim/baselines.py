"""The policies that ours is compared with.

Owns: four placements whose lines are first come, first served inside a level.
Never: anything of ours but the hash: `Bounded` is how this house placed requests before it knew costs (decision 0004).
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from scheduler.policy.ring import Ring
from tests.sim.policy import Worker
from tests.sim.request import Request

HOMES_COUNT_S = 300.0
HOME_LIFETIME_S = 3600.0
BOUND = 1.25
CANDIDATES = 16
VIEW_S = 1.0  # how often an API process reads the loads anew
REMEMBERED = 10_000


class FirstCome:
    """Lines that are served in the order of level, then arrival; round robin over the workers."""

    name = "round robin"

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers
        self._lines: list[list[tuple[int, int, Request]]] = [[] for _ in workers]
        self._turn = 0

    def look(self, now_s: float) -> None:
        """The loads are read as they are."""

    def place(self, request: Request, now_s: float) -> Worker:
        worker = self.choose(request, now_s)
        heapq.heappush(self._lines[worker.number], (request.level, request.number, request))
        return worker

    def choose(self, _request: Request, _now_s: float, /) -> Worker:
        self._turn += 1
        return self.workers[self._turn % len(self.workers)]

    def claim(self, worker: Worker, _now_s: float, /) -> Request | None:
        line = self._lines[worker.number]
        return heapq.heappop(line)[2] if line else None

    def look_again_s(self, _worker: Worker, _now_s: float, /) -> float | None:
        return None

    def began(self, worker: Worker, request: Request, now_s: float) -> None:
        """Nothing to remember."""

    def ended(self, worker: Worker, request: Request, now_s: float) -> None:
        """Nothing to learn."""

    def moved(self, _now_s: float, /) -> Iterable[Worker]:
        return ()


class LeastLoaded(FirstCome):
    """The worker with the fewest requests a slot; of equals, each in its turn."""

    name = "least loaded"

    def choose(self, _request: Request, _now_s: float, /) -> Worker:
        self._turn += 1
        count, first = len(self.workers), self._turn % len(self.workers)
        order = min(range(count), key=lambda i: self._load(self.workers[(first + i) % count]))
        return self.workers[(first + order) % count]

    @staticmethod
    def _load(worker: Worker) -> float:
        return worker.busy / len(worker.engine.slots)


class PlainHash(FirstCome):
    """Consistent hashing of the conversation, whatever waits there."""

    name = "plain hash"

    def __init__(self, workers: Sequence[Worker]) -> None:
        super().__init__(workers)
        self._ring = Ring((worker.name, float(len(worker.engine.slots))) for worker in workers)
        self._named = {worker.name: worker for worker in workers}
        self._orders: OrderedDict[str, list[Worker]] = OrderedDict()

    def choose(self, request: Request, _now_s: float, /) -> Worker:
        return self.order(request.conversation)[0]

    def order(self, conversation: str) -> list[Worker]:
        """The first candidates of a conversation; hashed once."""
        found = self._orders.get(conversation)
        if found is None:
            names = self._ring.preference(conversation, CANDIDATES)
            found = self._orders[conversation] = [self._named[name] for name in names]
            if len(self._orders) > REMEMBERED:
                self._orders.popitem(last=False)
        return found


class Bounded(PlainHash):
    """A home comes first; without one consistent hashing with bounded loads, a free slot before a full worker."""

    name = "bounded hash"

    def __init__(self, workers: Sequence[Worker]) -> None:
        super().__init__(workers)
        self._home: OrderedDict[str, tuple[Worker, float]] = OrderedDict()
        self._lately: list[OrderedDict[str, float]] = [OrderedDict() for _ in workers]
        self._mean = 0.0
        self._seen_s = -VIEW_S

    def choose(self, request: Request, now_s: float, /) -> Worker:
        home = self._home.get(request.conversation)
        worker = home[0] if home and self._bearable(home[0]) else self._best(request, now_s)
        if home and home[0] is not worker:
            self._lately[home[0].number].pop(request.conversation, None)
        self._settle(request.conversation, worker, now_s)
        return worker

    def _best(self, request: Request, now_s: float) -> Worker:
        """A free slot under the bound, a free slot, under the bound, any; the emptiest first where that is no hash's
        choice."""

        def rank(worker: Worker) -> tuple[int, float]:
            slots = len(worker.engine.slots)
            load = max(worker.busy, self._homes(worker, now_s))
            free, under = worker.busy < slots, load < math.ceil(BOUND * self._mean * slots)
            if under:
                return (0 if free else 2), 0.0
            return (1 if free else 3), load / slots

        return min(self.order(request.conversation), key=rank)

    def _bearable(self, home: Worker) -> bool:
        if home.queued < len(home.engine.slots):
            return True
        return not any(worker.busy < len(worker.engine.slots) for worker in self.workers if worker is not home)

    def _settle(self, conversation: str, worker: Worker, now_s: float) -> None:
        self._home[conversation] = (worker, now_s)
        self._home.move_to_end(conversation)
        while next(iter(self._home.values()))[1] < now_s - HOME_LIFETIME_S:
            self._home.popitem(last=False)
        lately = self._lately[worker.number]
        lately[conversation] = now_s
        lately.move_to_end(conversation)

    def _homes(self, worker: Worker, now_s: float) -> int:
        lately = self._lately[worker.number]
        while lately and next(iter(lately.values())) < now_s - HOMES_COUNT_S:
            lately.popitem(last=False)
        return len(lately)

    def look(self, now_s: float) -> None:
        if now_s - self._seen_s >= VIEW_S:
            self._seen_s = now_s
            load = sum(max(worker.busy, self._homes(worker, now_s)) for worker in self.workers)
            self._mean = (load + 1) / sum(len(worker.engine.slots) for worker in self.workers)


BASELINES = (FirstCome, LeastLoaded, PlainHash, Bounded)
