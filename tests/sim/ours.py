"""This house's own policy in the simulator: the real functions of `scheduler.policy`, fed as the store feeds them.

Owns: what the broker remembers for them: homes, lines, attained service, lengths. An API
process sees the leases once a second and the loads as they are, as in reality.
Never: a rule; those are in `scheduler.policy`.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from infra.config import Settings
from scheduler.contract import ClusterView, SlotInfo, StopReason, StoreInfo, WorkerInfo, WorkerState, WorkerView
from scheduler.policy import claiming, keeping, lengths, placement, rebalancing
from scheduler.policy.fleet import Fleet, fleet
from scheduler.policy.lengths import Samples
from scheduler.policy.line import Cached, Line, Occupied, Returning, Rules, Service, Waiting, agent_name, pair_name
from scheduler.policy.load import Ahead, Load, left_ms
from tests.sim.engine import Engine
from tests.sim.policy import Worker
from tests.sim.request import Request

VIEW_MS = 1000
HOMES_COUNT_MS = 300_000
LOOKED_AT = 64  # jobs of a line, when moves are considered
ENDLESS = 10**9  # nobody is refused here, as no baseline refuses anybody
_DEFAULTS = Settings()
RULES = Rules(
    ageing_ms=_DEFAULTS.ageing_s * 1000,
    half_life_ms=_DEFAULTS.fair_half_life_s * 1000,
    urgent_share=_DEFAULTS.urgent_share,
    return_hold_ms=_DEFAULTS.return_hold_s * 1000,
)


@dataclass(slots=True)
class Job:
    """A request with what its record says."""

    request: Request
    waiting: Waiting
    ahead: Ahead
    known: placement.Known
    candidate: placement.Candidate
    claimed_ms: float = 0.0

    def queued(self, most_moves: int) -> rebalancing.Queued:
        """As it is seen when moves are considered."""
        waiting = self.waiting
        arrival_ms, may_move = int(waiting.arrival_ms), self.request.moves < most_moves
        return rebalancing.Queued(waiting.id, self.known, waiting.expected_ms, arrival_ms, may_move)

    def left_ms(self, now_ms: float) -> float:
        """What it still takes, once it runs."""
        place = self.candidate
        return left_ms(place.expected_ms, place.new_tokens, now_ms - self.claimed_ms, place.token_ms)


@dataclass(slots=True)
class Books:
    """What the broker keeps for one worker."""

    line: dict[str, Job] = field(default_factory=dict)
    running: dict[str, Job] = field(default_factory=dict)
    back: dict[str, Returning] = field(default_factory=dict)
    homes: OrderedDict[str, float] = field(default_factory=OrderedDict)
    held_ms: float = 0.0
    lease: WorkerInfo | None = None
    lease_of: int = 0

    def load(self, now_ms: float) -> Load:
        """As `lua/admit.lua` sees it."""
        running = tuple(job.left_ms(now_ms) for job in self.running.values())
        line = sorted(self.line.values(), key=_by_level)
        return Load(running, tuple(job.ahead for job in line), len(line), self.count(now_ms))

    def movable(self, now_ms: float, most_moves: int) -> rebalancing.Books:
        """As it is seen when moves are considered."""
        running = tuple(job.left_ms(now_ms) for job in self.running.values())
        line = sorted(self.line.values(), key=_by_level)
        return rebalancing.Books(running, tuple(job.queued(most_moves) for job in line[:LOOKED_AT]), self.count(now_ms))

    def count(self, now_ms: float) -> int:
        """Conversations at home there, as load counts them."""
        while self.homes and next(iter(self.homes.values())) < now_ms - HOMES_COUNT_MS:
            self.homes.popitem(last=False)
        return len(self.homes)


def _by_level(job: Job) -> tuple[int, int]:
    return job.waiting.level, job.waiting.arrival


class Ours:
    """Placement by cost, claims by level, age and attained service."""

    name = "ours"
    rules = RULES
    margin_ms = _DEFAULTS.move_margin_s * 1000
    bound = _DEFAULTS.load_bound
    most_moves = 1

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers
        self._named = {worker.name: worker for worker in workers}
        self._books = {worker.name: Books() for worker in workers}
        self._homes: OrderedDict[str, placement.Home] = OrderedDict()
        self._lengths: dict[tuple[str, str], Samples] = {}
        self._everyone = Samples()
        self._keys: dict[str, Service] = {}
        self._agents: dict[str, Service] = {}
        self._fleet: Fleet | None = None

    # where

    def place(self, request: Request, now_s: float) -> Worker:
        now_ms = now_s * 1000
        known = self._known(request)
        found = placement.candidates(self._seen(now_ms), known, self.bound)
        loads = {candidate.worker: self._books[candidate.worker].load(now_ms) for candidate in found}
        choice = placement.choose(found, loads, known, self.margin_ms, ENDLESS)
        if choice is None:
            raise AssertionError("no worker was found for a request")
        taken = found[choice.index]
        self._join(taken, request, known, now_ms)
        return self._named[taken.worker]

    def _known(self, request: Request) -> placement.Known:
        own = self._lengths.get((request.kind.value, request.agent), Samples())
        return placement.Known(
            conversation=request.conversation,
            agent=agent_name(request.key, request.agent),
            level=request.level,
            prompt_tokens=request.prompt_tokens,
            length=lengths.expected(own, self._everyone),
            home=self._homes.get(request.conversation),
        )

    def _join(self, taken: placement.Candidate, request: Request, known: placement.Known, now_ms: float) -> None:
        waiting = Waiting(
            str(request.number), request.level, request.key, request.agent, request.kind, request.number, now_ms,
            taken.expected_ms, conversation=request.conversation, prefill_ms=taken.new_tokens * taken.token_ms,
        )  # fmt: skip
        ahead = Ahead(request.level, known.agent, taken.expected_ms)
        self._books[taken.worker].line[waiting.id] = Job(request, waiting, ahead, known, taken)
        self._settle_home(request.conversation, taken.worker, now_ms)

    def _settle_home(self, conversation: str, worker: str, now_ms: float) -> None:
        home = self._homes.get(conversation)
        if home is None or home.worker != worker:
            if home is not None:
                self._books[home.worker].homes.pop(conversation, None)
            home = placement.Home(worker, 0, 0)
        self._homes[conversation] = home
        homes = self._books[worker].homes
        homes[conversation] = now_ms
        homes.move_to_end(conversation)

    def look(self, now_s: float) -> None:
        now_ms = now_s * 1000
        if self._fleet is None or now_ms - self._fleet.now_ms >= VIEW_MS:
            workers = tuple(self._told(worker, now_ms) for worker in self.workers)
            self._fleet = fleet(ClusterView.model_construct(now_ms=int(now_ms), workers=workers))

    def _seen(self, now_ms: float) -> Fleet:
        if self._fleet is None:
            self.look(now_ms / 1000)
        if self._fleet is None:
            raise AssertionError("a look shows nothing")
        return self._fleet

    def _told(self, worker: Worker, now_ms: float) -> WorkerView:
        books = self._books[worker.name]
        if books.lease is None or books.lease_of != worker.engine.changes:
            books.lease, books.lease_of = lease(worker.name, worker.engine), worker.engine.changes
        info = books.lease
        return WorkerView.model_construct(info=info, running=len(books.running), homes=books.count(now_ms))

    # which

    def claim(self, worker: Worker, now_s: float) -> Request | None:
        now_ms, books = now_s * 1000, self._books[worker.name]
        choice = claiming.choose(self.line(worker, now_ms), self.rules)
        books.held_ms = choice.held_ms
        if choice.job is None:
            return None
        job = books.line.pop(choice.job)
        self._claimed(job, books, now_ms)
        return job.request

    def books(self, worker: Worker) -> Books:
        """What is kept for a worker."""
        return self._books[worker.name]

    def line(self, worker: Worker, now_ms: float) -> Line:
        """A worker's line as a claim looks at it."""
        books = self._books[worker.name]
        return Line(
            now_ms=now_ms,
            slots=len(worker.engine.slots),
            waiting=[job.waiting for job in books.line.values()],
            running=[
                Occupied(job.waiting.level, job.waiting.key, job.waiting.agent, job.waiting.conversation)
                for job in books.running.values()
            ],
            returning=list(books.back.values()),
            keys=self._keys,
            agents=self._had(books),
            cached=self._cached(worker, now_ms),
        )

    def _cached(self, worker: Worker, now_ms: float) -> list[Cached]:
        """What the free slots hold, as a worker tells a claim."""
        found = []
        for slot in worker.engine.slots:
            if slot.request is None and slot.conversation:
                prefill_ms = worker.engine.prefill_s(slot.tokens) * 1000
                gap_ms = slot.gap_s * 1000 if slot.gap_s is not None else None
                idle_ms = now_ms - slot.ended_s * 1000
                left_ms = keeping.expected_for_ms(slot.stop_reason, gap_ms, idle_ms, prefill_ms, self.rules)
                found.append(Cached(slot.conversation, slot.level, prefill_ms, left_ms))
        return found

    def _had(self, books: Books) -> dict[str, Service]:
        names = {job.ahead.agent for job in books.line.values()}
        return {name: self._agents[name] for name in names if name in self._agents}

    def _claimed(self, job: Job, books: Books, now_ms: float) -> None:
        waiting = job.waiting
        pair = pair_name(waiting.level, waiting.key, waiting.agent)
        job.claimed_ms = now_ms
        books.back.pop(pair, None)
        books.running[waiting.id] = job
        self._charge(self._keys, waiting.key, waiting.expected_ms, now_ms)
        self._charge(self._agents, agent_name(waiting.key, waiting.agent), waiting.expected_ms, now_ms)

    def _charge(self, accounts: dict[str, Service], whom: str, ms: float, now_ms: float) -> None:
        accounts[whom] = accounts.get(whom, Service()).charged(ms, now_ms, self.rules.half_life_ms)

    def look_again_s(self, worker: Worker, now_s: float) -> float | None:
        held_ms = self._books[worker.name].held_ms
        return now_s + max(1, math.ceil(held_ms)) / 1000 if held_ms else None

    def began(self, worker: Worker, request: Request, now_s: float) -> None:
        """All of it was noted with the claim."""

    # what is learnt

    def ended(self, worker: Worker, request: Request, now_s: float) -> None:
        now_ms, books = now_s * 1000, self._books[worker.name]
        job = books.running.pop(str(request.number))
        used_ms = worker.engine.service_s(request.prefilled_tokens, request.output_tokens) * 1000
        bill = Service(job.waiting.expected_ms, job.claimed_ms)
        for accounts, whom in (
            (self._keys, request.key),
            (self._agents, agent_name(request.key, request.agent)),
        ):
            accounts[whom] = accounts[whom].settled(used_ms, bill, now_ms, self.rules.half_life_ms)
        self._learn(request)
        self._remember(worker, books, request, now_ms)

    def _learn(self, request: Request) -> None:
        whose = (request.kind.value, request.agent)
        self._lengths[whose] = self._lengths.get(whose, Samples()).learnt(request.output_tokens)
        self._everyone = self._everyone.learnt(request.output_tokens)

    def _remember(self, worker: Worker, books: Books, request: Request, now_ms: float) -> None:
        if request.last:  # nobody comes back to it: its home would only lie there until it is forgotten
            self._homes.pop(request.conversation, None)
        else:
            self._homes[request.conversation] = placement.Home(worker.name, request.held_tokens, int(now_ms))
        if request.stop_reason is StopReason.TOOL_USE:
            gap_s = worker.engine.gap_s(request.conversation)
            hold_ms = keeping.return_hold_ms(gap_s * 1000 if gap_s is not None else None, self.rules)
            pair = pair_name(request.level, request.key, request.agent)
            books.back[pair] = Returning(request.level, request.key, request.agent, now_ms + hold_ms)

    def moved(self, now_s: float, /) -> Iterable[Worker]:
        now_ms, books = now_s * 1000, self._books
        loads = {name: (len(of.line), len(of.running)) for name, of in books.items()}
        slots = {worker.name: len(worker.engine.slots) for worker in self.workers}
        longest, idlest = rebalancing.to_look_at(loads, slots)
        if not longest:
            return []
        self.look(now_s)
        fleet_now = self._seen(now_ms)
        seen = {name: books[name].movable(now_ms, self.most_moves) for name in dict.fromkeys([*longest, *idlest])}
        return [
            self._move(move, now_ms)
            for move in rebalancing.moves(fleet_now, seen, int(now_ms), self.margin_ms, ENDLESS)
        ]  # fmt: skip

    def _move(self, move: rebalancing.Move, now_ms: float) -> Worker:
        job = self._books[move.old].line.pop(move.job.id)
        job.candidate = move.new
        job.waiting = replace(
            job.waiting, expected_ms=move.new.expected_ms, prefill_ms=move.new.new_tokens * move.new.token_ms
        )
        job.ahead = replace(job.ahead, expected_ms=move.new.expected_ms)
        self._books[move.new.worker].line[job.waiting.id] = job
        self._settle_home(job.request.conversation, move.new.worker, now_ms)
        self._named[move.old].queued -= 1
        worker = self._named[move.new.worker]
        worker.queued += 1
        job.request.moves += 1
        return worker


def lease(name: str, engine: Engine) -> WorkerInfo:
    """What a worker with this engine says of itself."""
    slots = tuple(
        SlotInfo.model_construct(
            slot=slot.number,
            conversation=slot.conversation or None,
            busy=slot.request is not None,
            tokens=slot.tokens,
            saved_tokens=engine.store.saved_tokens(slot.conversation) if engine.store else 0,
        )
        for slot in engine.slots
    )
    return WorkerInfo.model_construct(
        name=name,
        incarnation="1",
        state=WorkerState.READY,
        context_tokens=engine.window_tokens,
        prompt_limit_tokens=0,
        slots=slots,
        rates=engine.rates,
        store=engine.store.info() if engine.store else StoreInfo(),
    )
