"""The simulated cluster: agents ask, a policy places and claims, engines answer.

Owns: the course of events, and that each request is answered once.
Never: decides; the policy does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from time import perf_counter

from scheduler.contract import Rates
from tests.sim.engine import Engine
from tests.sim.figures import Figures
from tests.sim.policy import Policy, Worker
from tests.sim.request import NOT_YET, Request
from tests.sim.store import Store
from tests.sim.timeline import Timeline
from tests.sim.workloads import Script, Shape, Workload, agents_for

START_S = 60.0  # the agents begin within so long
MOVES_EVERY_S = 1.0
RATES = Rates(prefill_tokens_per_s=3000, decode_tokens_per_s=40)


@dataclass(frozen=True, slots=True)
class Fleet:
    """So many workers, all alike. `speeds` makes the first ones faster or slower by a factor; `store`: they save caches
    and restore them."""

    workers: int = 4
    slots: int = 4
    rates: Rates = RATES
    speeds: tuple[float, ...] = ()
    store: bool = False

    def build(self, window_tokens: int) -> list[Worker]:
        store = Store(self.rates.prefill_tokens_per_s) if self.store else None
        return [Worker(Engine(n, self.slots, self._rates(n), window_tokens, store)) for n in range(self.workers)]

    def _rates(self, number: int) -> Rates:
        factor = self.speeds[number] if number < len(self.speeds) else 1.0
        return Rates(
            prefill_tokens_per_s=self.rates.prefill_tokens_per_s * factor,
            decode_tokens_per_s=self.rates.decode_tokens_per_s * factor,
        )


class Actor:
    """Somebody who follows a script; `parent` waits for it."""

    __slots__ = ("children", "parent", "script")

    def __init__(self, script: Script, parent: "Actor | None") -> None:
        self.script = script
        self.parent = parent
        self.children = 0


class Cluster:
    """One run. `watch`, if given, sees each request when it is answered."""

    def __init__(
        self, workers: Sequence[Worker], policy: Policy, watch: Callable[[Request], None] = lambda _: None
    ) -> None:
        self.time = Timeline()
        self.figures = Figures(policy.name)
        self._policy = policy
        self._workers = workers
        self._watch = watch
        self._asked_by: dict[int, Actor] = {}
        self._look_again: dict[int, float] = {}
        self._numbers = 0
        self._moving = False

    def run(self, scripts: Sequence[tuple[float, Script]]) -> Figures:
        """Follow the scripts, each from its time on, until all are done."""
        self.figures.agents = len(scripts)
        for start_s, script in scripts:
            self.time.at(start_s, self._go_on, Actor(script, None))
        began_s = perf_counter()
        self.time.run()
        self.figures.end(perf_counter() - began_s)
        if self._asked_by:
            raise AssertionError(f"{len(self._asked_by)} requests were never answered")
        return self.figures

    def _go_on(self, actor: Actor) -> None:
        step = next(actor.script, None)
        if step is None:
            self._done(actor)
        elif isinstance(step, Request):
            self._ask(step, actor)
        elif isinstance(step, list):
            actor.children = len(step)
            for script in step:
                self._go_on(Actor(script, actor))
        else:
            self.time.at(self.time.now_s + step, self._go_on, actor)

    def _done(self, actor: Actor) -> None:
        parent = actor.parent
        if parent is not None:
            parent.children -= 1
            if not parent.children:
                self._go_on(parent)

    def _ask(self, request: Request, actor: Actor) -> None:
        now_s = self.time.now_s
        self._numbers += 1
        request.number, request.arrival_s = self._numbers, now_s
        self._asked_by[request.number] = actor
        self._policy.look(now_s)
        began_s = perf_counter()
        worker = self._policy.place(request, now_s)
        self.figures.placed(perf_counter() - began_s)
        worker.queued += 1
        self._serve(worker)
        self._watch_lines()

    def _serve(self, worker: Worker) -> None:
        """Fill the free slots of a worker from its line."""
        now_s = self.time.now_s
        while worker.queued and worker.engine.free:
            request = self._policy.claim(worker, now_s)
            if request is None:
                self._wait(worker)
                return
            if request.begun_s != NOT_YET:
                raise AssertionError(f"request {request.number} is served twice")
            worker.queued -= 1
            request.worker = worker.number
            service_s = worker.engine.begin(request, now_s)
            self._policy.began(worker, request, now_s)
            self.time.at(now_s + service_s, self._answered, (worker, request))

    def _wait(self, worker: Worker) -> None:
        again_s = self._policy.look_again_s(worker, self.time.now_s)
        if again_s is None:
            return
        known_s = self._look_again.get(worker.number, NOT_YET)
        if known_s <= self.time.now_s or again_s < known_s:
            self._look_again[worker.number] = again_s
            self.time.at(again_s, self._serve, worker)

    def _answered(self, what: tuple[Worker, Request]) -> None:
        worker, request = what
        worker.engine.end(request, self.time.now_s)
        self._policy.ended(worker, request, self.time.now_s)
        self.figures.answered(request, worker.engine)
        self._watch(request)
        actor = self._asked_by.pop(request.number)
        self._serve(worker)
        self._go_on(actor)

    def _watch_lines(self) -> None:
        """While requests wait, the policy may move some, each second."""
        if not self._moving:
            self._moving = True
            self.time.at(self.time.now_s + MOVES_EVERY_S, self._move)

    def _move(self, _: None) -> None:
        self._moving = any(worker.queued for worker in self._workers)
        for worker in self._policy.moved(self.time.now_s):
            self._serve(worker)
        if self._moving:
            self.time.at(self.time.now_s + MOVES_EVERY_S, self._move)


Making = Callable[[Sequence[Worker]], Policy]


def simulate(
    make: Making,
    workload: Workload,
    load: float,
    fleet: Fleet,
    seed: int = 1,
    shape: Shape | None = None,
    watch: Callable[[Request], None] = lambda _: None,
) -> Figures:
    """The figures of one policy under one workload at one load; the same for the same arguments."""
    shape = shape or Shape()
    workers = fleet.build(shape.window_tokens)
    agents = agents_for(load, fleet.workers * fleet.slots, fleet.rates, workload, seed, shape)
    chance = Random(f"{seed} starts")
    scripts = [(chance.uniform(0, START_S), workload.script(seed, number, shape)) for number in range(len(agents))]
    cluster = Cluster(workers, make(workers), watch)
    cluster.figures.halfway = sum(agent.requests for agent in agents) // 2
    return cluster.run(scripts)
