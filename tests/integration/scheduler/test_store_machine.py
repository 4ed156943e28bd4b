"""The store against a simple model: whatever happens in whatever order, the books agree.

No job is lost, none is claimed twice, each has exactly one last entry, what a lost attempt still writes is refused, a
line and its tickets agree, each claim is charged and settled once, and no key that belongs to a job lives for ever.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from infra import keys
from infra.errors import NoWorker, QueueFull
from scheduler.attempts import MOST_ATTEMPTS
from scheduler.contract import ClaimedJob, Failed, Finished, JobSpec, Kind, StopReason, TextDelta, encode_deltas
from scheduler.policy.claiming import Line, Rules, Service, Waiting, choose
from tests.doubles.broker import Broker
from tests.integration.scheduler.store import Store, Worker, candidates, sent_twice, spec, to
from tests.integration.scheduler.test_raise import raising as raising_of

pytestmark = pytest.mark.integration

WORKERS = ("w1", "w2")
QUEUE_LIMIT = 4
AGENTS = "ab"
KINDS = [Kind.MAIN, Kind.SUBAGENT, Kind.SIDE]
TEXT = encode_deltas([TextDelta("t")])
DONE = encode_deltas([Finished(StopReason.END_TURN, None, 1, 0, 1, 1, 1, "h", 1)])
FAILED = encode_deltas([Failed("engine_lost", "gone")])
LOST = Failed("worker_lost", "gone")

T = TypeVar("T")


@dataclass
class Model:
    """What we believe of one job."""

    spec: JobSpec
    worker: str
    arrival: int
    expected_ms: int
    state: str = "queued"
    incarnation: str = ""
    claimed: ClaimedJob | None = None
    sequence: int = 0
    entries: int = 0
    runs_nowhere: bool = False
    balanced: bool = False
    settled: bool = False
    lost: list[tuple[ClaimedJob, Worker]] = field(default_factory=list)

    @property
    def may_be_tried_again(self) -> bool:
        return self.claimed is not None and self.state == "running" and self.claimed.attempt < MOST_ATTEMPTS


class StoreMachine(RuleBasedStateMachine):
    """Rules are what APIs, workers and recovery do; the model is plain Python."""

    broker: Broker
    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.broker.flush()
        self.runner = asyncio.Runner()
        self.store = self.run_async(self._new_store())
        self.model: dict[str, Model] = {}
        self.charged_ms = dict.fromkeys(AGENTS, 0.0)
        self.arrivals = 0
        self.lives = 0
        self.workers = {name: self._new_worker(name) for name in WORKERS}

    async def _new_store(self) -> Store:
        return Store(self.broker.url, self.broker.client, QUEUE_LIMIT)

    def run_async(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def _new_worker(self, name: str) -> Worker:
        self.lives += 1
        return self.store.worker(name, f"{name}-{self.lives}")

    def _line(self, worker: str) -> list[Model]:
        waiting = [job for job in self.model.values() if job.state == "queued" and job.worker == worker]
        return sorted(waiting, key=lambda job: (job.spec.level, job.arrival))

    # --- what happens -------------------------------------------------------------------------------------------

    @rule(
        target=jobs,
        level=st.integers(0, 9),
        agent=st.sampled_from(AGENTS),
        kind=st.sampled_from(KINDS),
        order=st.permutations(WORKERS),
        twice=st.booleans(),
        expected_ms=st.integers(1, 10_000),
    )
    def admit(self, level: int, agent: str, kind: Kind, order: list[str], twice: bool, expected_ms: int) -> Any:
        job = spec(level, agent=agent, kind=kind)
        with_room = [name for name in order if len(self._line(name)) < QUEUE_LIMIT]
        try:
            worker = self.run_async(self.store.admit(job, *order))
            if twice:
                assert self.run_async(self.store.jobs.admit(job, candidates(*order), 1)).worker == worker
        except QueueFull:
            assert with_room == []
            return multiple()
        self.arrivals += 1
        self.model[job.id] = Model(job, worker, self.arrivals, expected_ms)
        self.store.raw.hset(keys.job(job.id), "expected_ms", expected_ms)
        assert worker in with_room
        return job.id

    @rule(name=st.sampled_from(WORKERS))
    def take_a_ticket(self, name: str) -> None:
        """A worker pops a ticket, as Celery does, most urgent first, and claims."""
        ticket = next((level for level, count in enumerate(self.store.tickets(name)) if count), None)
        if ticket is None:
            assert self._line(name) == []
            return
        self.store.raw.rpop(keys.level_list(name, ticket))
        worker, expected = self.workers[name], self._choice(name)
        claimed = worker.claims.claim()
        line = self._line(name)
        if not line:
            assert claimed is None
            return
        assert claimed is not None
        assert claimed.id == expected
        best = self.model[claimed.id]
        assert claimed.attempt == len(best.lost) + 1
        best.state, best.claimed, best.incarnation = "running", claimed, worker.incarnation
        best.sequence, best.settled = 0, False
        self.charged_ms[best.spec.identity.agent] += best.expected_ms

    def _choice(self, name: str) -> str | None:
        """What the policy takes, from the jobs that we believe in and the service that the store has written."""
        now_ms = self.store.now_ms()
        waiting = [
            Waiting(
                job.spec.id, job.spec.level, "k", job.spec.identity.agent, job.spec.identity.kind, job.arrival, now_ms
            )
            for job in self._line(name)
        ]
        return choose(
            Line(now_ms, 1, waiting, agents={f"k:{agent}": self._had(agent) for agent in AGENTS}), Rules()
        ).job

    def _had(self, agent: str) -> Service:
        ms, at_ms = self.store.raw.hmget(keys.attained(f"agent:k:{agent}"), "ms", "at_ms")
        return Service(float(ms or 0), float(at_ms or 0))

    @rule(job_id=jobs, used_ms=st.integers(0, 20_000), twice=st.booleans())
    def settle(self, job_id: str, used_ms: int, twice: bool) -> None:
        """The answer is over, whatever has become of its job; said again it changes nothing."""
        job = self.model[job_id]
        if job.claimed is None:
            return
        for _ in range(2 if twice else 1):
            self.workers[job.worker].claims.settle(job.claimed, used_ms, None, in_tool_call=False)
        if not job.settled:
            self.charged_ms[job.spec.identity.agent] += used_ms - job.expected_ms
            job.settled = True

    @rule(job_id=jobs, final=st.sampled_from(["", "done", "failed"]), repeated=st.booleans())
    def write(self, job_id: str, final: str, repeated: bool) -> None:
        job = self.model[job_id]
        if job.claimed is None:
            return
        worker = self.store.worker(job.worker, job.incarnation, alive=False)
        payload = {"": TEXT, "done": DONE, "failed": FAILED}[final]
        job.sequence += 1
        stands = worker.append(job.claimed, job.sequence, payload, final)
        assert stands is (job.state == "running")
        if stands and repeated:
            assert worker.append(job.claimed, job.sequence, payload, final)
        if stands:
            job.entries += 1
            job.state = final or job.state
        elif job.state == "cancelled":
            job.state = "gone"

    @rule(job_id=jobs)
    def cancel(self, job_id: str) -> None:
        job = self.model[job_id]
        answer = self.run_async(self.store.jobs.cancel(job_id, job.worker, job.spec.level))
        expected = job.state if job.state in ("queued", "running") else "over"
        assert answer == expected
        job.state = {"queued": "gone", "running": "cancelled"}.get(job.state, job.state)

    @rule(job_id=jobs)
    def withdraw(self, job_id: str) -> None:
        job = self.model[job_id]
        # As an API does that has not heard of a move.
        first = next(name for name in WORKERS if name != job.worker)
        answer = self.run_async(self.store.jobs.cancel(job_id, first, job.spec.level, only_queued=True))
        assert answer == (job.state if job.state in ("queued", "running") else "over")
        if job.state == "queued":
            job.state = "gone"

    @rule(job_id=jobs, for_balance=st.booleans())
    def move(self, job_id: str, for_balance: bool) -> None:
        job = self.model[job_id]
        new = next(name for name in WORKERS if name != job.worker)
        conversation, level = job.spec.identity.conversation, job.spec.level
        moving = self.store.jobs.move(job_id, job.worker, to(new), level, conversation, for_balance=for_balance)
        moved = self.run_async(moving)
        may_move = job.state == "queued" and not (for_balance and job.balanced)
        assert moved is (may_move and len(self._line(new)) < QUEUE_LIMIT)
        if moved:
            job.balanced = job.balanced or for_balance
            self.store.ticket(new, job.spec.level)
            self.store.raw.hset(keys.job(job_id), "expected_ms", job.expected_ms)
            job.worker = new

    @rule(job_id=jobs, seen=st.integers(0, 9), level=st.integers(0, 9), twice=st.booleans())
    def rise(self, job_id: str, seen: int, level: int, twice: bool) -> None:
        """As an API asks that has heard neither of a move nor of another rise; `twice`: its first answer got lost."""
        job = self.model[job_id]
        raising, agent = raising_of(self.store), job.spec.identity.agent
        first = next(name for name in WORKERS if name != job.worker)
        with pytest.MonkeyPatch.context() as patch:
            if twice:
                patch.setattr(raising, "_raise", sent_twice(raising._raise))
            waits = self.run_async(raising.lift(job_id, agent, first, seen, level, 0))
        assert waits is (job.state == "queued")
        if job.state == "queued" and level < job.spec.level:
            job.spec = job.spec.model_copy(update={"level": level})

    @rule(name=st.sampled_from(WORKERS))
    def die_and_come_back(self, name: str) -> None:
        """A new process of that name, and recovery's look at what the last one ran."""
        dead = self.workers[name].incarnation
        self.store.raw.delete(keys.lease(name))
        self.workers[name] = self._new_worker(name)
        for job_id, incarnation in self.store.running(name).items():
            job = self.model[job_id]
            again = self.run_async(self.store.jobs.requeue(job_id, name, incarnation))
            assert again is (job.may_be_tried_again and job.incarnation == dead)
            if again:
                self._waits_again(job)
            buried = self.run_async(self.store.jobs.bury(job_id, name, incarnation, LOST))
            assert buried is (job.state == "running" and job.incarnation == dead)
            if again:
                continue
            job.runs_nowhere = job.incarnation == dead
            if buried:
                job.state = "failed"
                job.entries += 1

    def _waits_again(self, job: Model) -> None:
        assert job.claimed is not None
        job.lost.append((job.claimed, self.store.worker(job.worker, job.incarnation, alive=False)))
        job.state, job.claimed, job.incarnation = "queued", None, ""
        self.store.ticket(job.worker, job.spec.level)

    @rule(job_id=jobs, twice=st.booleans())
    def lose_the_engine(self, job_id: str, twice: bool) -> None:
        job, worker = self.model[job_id], self.workers[self.model[job_id].worker]
        again = worker.claims.give_up(job.claimed) if job.claimed else False
        assert again is (job.may_be_tried_again and job.incarnation == worker.incarnation)
        if again and twice and job.claimed:
            assert worker.claims.give_up(job.claimed)
        if again:
            self._waits_again(job)

    @rule(job_id=jobs, final=st.sampled_from(["", "done", "failed"]))
    def write_late(self, job_id: str, final: str) -> None:
        """Attempts that were lost may not have noticed."""
        for claimed, worker in self.model[job_id].lost:
            assert not worker.append(claimed, 1_000, {"": TEXT, "done": DONE, "failed": FAILED}[final], final)

    @rule(job_id=jobs)
    def try_the_living_again(self, job_id: str) -> None:
        job = self.model[job_id]
        living = self.workers[job.worker].incarnation
        assert not self.run_async(self.store.jobs.requeue(job_id, job.worker, living))

    @rule(job_id=jobs)
    def bury_the_living(self, job_id: str) -> None:
        job = self.model[job_id]
        living = self.workers[job.worker].incarnation
        assert not self.run_async(self.store.jobs.bury(job_id, job.worker, living, LOST))

    @rule(job_id=consumes(jobs))
    def forget(self, job_id: str) -> None:
        job = self.model[job_id]
        if job.state in ("done", "failed"):
            self.run_async(self.store.jobs.forget(job_id))
            del self.model[job_id]

    # --- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def lines_and_tickets_agree(self) -> None:
        for name in WORKERS:
            line = self._line(name)
            assert self.store.line(name) == [job.spec.id for job in line]
            assert sum(self.store.tickets(name)) == len(line)

    @invariant()
    def records_say_what_we_believe(self) -> None:
        running = {name: self.store.running(name) for name in WORKERS}
        for job_id, job in self.model.items():
            assert self.store.state(job_id) == (None if job.state == "gone" else job.state)
            runs = job.state in ("running", "cancelled") and not job.runs_nowhere
            assert (job_id in running[job.worker]) is runs

    @invariant()
    def each_claim_is_charged_and_settled_once(self) -> None:
        had = {agent: self._had(agent).ms for agent in AGENTS}
        # The machine runs for a second, and service fades by half in three minutes.
        assert had == pytest.approx(self.charged_ms, rel=0.05, abs=1.0)

    @precondition(lambda self: self.model)
    @invariant()
    def each_stream_has_one_end_and_it_is_the_last(self) -> None:
        for job_id, job in self.model.items():
            written = [delta for _, deltas in self.store.written(job_id) for delta in deltas]
            ends = [number for number, delta in enumerate(written) if isinstance(delta, Finished | Failed)]
            assert ends == ([len(written) - 1] if job.state in ("done", "failed") else [])
            if job.state != "gone":
                assert len(written) == job.entries

    def teardown(self) -> None:
        try:
            self._nothing_is_left()
        finally:
            self.run_async(self.store.close())
            self.runner.close()

    def _nothing_is_left(self) -> None:
        assert self.store.lasting() == []
        for job in self.model.values():
            if job.state in ("queued", "running"):
                with_worker = self.store.jobs.cancel(job.spec.id, job.worker, job.spec.level)
                assert self.run_async(with_worker) == job.state
                job.state = "cancelled" if job.state == "running" else "gone"
            if job.state == "cancelled" and job.claimed is not None:
                dead = self.store.worker(job.worker, job.incarnation, alive=False)
                assert not dead.append(job.claimed, job.sequence + 1, TEXT, "")
            if job.state in ("done", "failed"):
                self.run_async(self.store.jobs.forget(job.spec.id))
        left = [name for name in self.store.raw.scan_iter() if name.startswith(("corral:job", "corral:stream", "llm."))]
        assert left == []
        assert [self.store.running(name) for name in WORKERS] == [{}, {}]


def test_the_books_agree_whatever_happens(broker: Broker) -> None:
    StoreMachine.broker = broker
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],  # to shrink on a real broker takes minutes; the printed steps are short enough
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_nobody_alive_is_told_apart_from_everybody_full(broker: Broker) -> None:
    async def ask() -> None:
        store = Store(broker.url, broker.client)
        try:
            with pytest.raises(NoWorker):
                await store.admit(spec())
        finally:
            await store.close()

    asyncio.run(ask())
