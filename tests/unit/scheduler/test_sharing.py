"""Who shares which job, and that a job is given up once, when the last who wants it has gone, and never before."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.errors import BrokerDown, CorralError, PromptTooLong, QueueFull, WaitedTooLong
from infra.observability import metrics
from scheduler import share as share_module
from scheduler import sharing as sharing_module
from scheduler.contract import (
    Delta,
    Failed,
    Finished,
    GenerationRequest,
    Identity,
    JobSpec,
    Kind,
    Message,
    StopReason,
    TextBlock,
    TextDelta,
)
from scheduler.dispatch import Dispatcher
from scheduler.gathering import Gathering
from scheduler.packing import pack
from scheduler.raising import Raising
from scheduler.share import Held
from scheduler.sharing import Sharing

pytestmark = pytest.mark.unit

END = Finished(StopReason.END_TURN, None, 3, 0, 1, 1, 1, "hash", 1)
FAILURE = Failed("engine", "it broke")
LINGER_S = 3.0


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time stands still until a test moves it."""

    now_s = 1000.0

    def time(self) -> float:
        return self.now_s


def spec(
    agent: str = "",
    text: str = "hello",
    temperature: float | None = 0,
    level: int = 5,
    key_name: str = "k",
    **more: Any,
) -> JobSpec:
    message = Message(role="user", content=(TextBlock(text=text),))
    request = GenerationRequest(model="m", messages=(message,), max_tokens=16, temperature=temperature)
    identity = Identity(
        key_name=key_name,
        agent=agent or key_name,
        session=agent or None,
        conversation=f"conversation of {agent or text}",
        kind=Kind.MAIN,
        identified=bool(agent),
    )
    return JobSpec(
        id=uuid4().hex, identity=identity, level=level, request=pack(request), **{"wait_limit_ms": 30_000, **more}
    )


class Job:
    """A job as `Placed` shows it. It waits in its line until `begins`."""

    worker, may_use_reserve, eta_ms = "w1", False, 0

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.last: Delta | None = None
        self.waits = True
        self.said: list[Delta] = []
        self.cancelled = self.left = 0
        self.told: list[str | None] = []
        self._comes: asyncio.Queue[list[Delta]] = asyncio.Queue()

    def say(self, *deltas: Delta) -> None:
        self.waits = False
        self.said += deltas
        self._comes.put_nowait(list(deltas))

    async def next(self, _: float) -> list[Delta]:
        deltas = await self._comes.get()
        if isinstance(deltas[-1], Finished | Failed):
            self.last = deltas[-1]
        return deltas

    async def withdraw(self) -> bool:
        await asyncio.sleep(0)
        return self.waits

    async def vanished(self) -> bool:
        return False

    async def met_window(self, who: Identity) -> None:
        self.told.append(who.session)


class House:
    """A dispatcher and a store that note what is asked of them."""

    def __init__(self, *, coalesce: bool = True) -> None:
        self.jobs: list[Job] = []
        self.refuses: CorralError | None = None
        self.refuses_next_only = False
        self.places = asyncio.Event()
        self.places.set()
        self.lifted: list[tuple[int, int, int]] = []
        self.broker_down = False
        self.sharing = Sharing(
            cast(Dispatcher, self),
            cast(Raising, self),
            cast(Gathering, SimpleNamespace(worker=self._nowhere)),
            coalesce=coalesce,
            linger_s=LINGER_S,
        )

    async def _nowhere(self, _: JobSpec) -> None:
        return None

    @asynccontextmanager
    async def submit(self, spec: JobSpec, only: str | None) -> AsyncIterator[Job]:
        assert only is None
        job = Job(spec)
        self.jobs.append(job)
        try:
            await self.places.wait()
            if self.refuses:
                refused, self.refuses = self.refuses, None if self.refuses_next_only else self.refuses
                raise refused
            yield job
        finally:
            job.left += 1
            job.cancelled += job.last is None

    async def settle(self, _: float) -> None:
        assert all(job.left for job in self.jobs)

    async def lift(self, _job: str, _agent: str, _worker: str, old: int, new: int, wait_ms: int) -> bool:
        self.lifted.append((old, new, wait_ms))
        if self.broker_down:
            raise BrokerDown("it is away")
        return True

    async def waits(self, job_id: str, _worker: str, _level: int) -> bool:
        await asyncio.sleep(0)
        return next(job.waits for job in self.jobs if job.spec.id == job_id)


class Client:
    """One request: it holds a job until it hangs up, and keeps what it heard."""

    def __init__(self, held: Held, room: AsyncExitStack) -> None:
        self.held, self.room = held, room
        self.heard: list[Delta] = []

    async def hear(self) -> None:
        self.heard += await self.held.next(0)

    async def leave(self) -> None:
        await self.room.aclose()


async def ask(house: House, asked: JobSpec) -> Client:
    room = AsyncExitStack()
    return Client(await room.enter_async_context(house.sharing.submit(asked)), room)


async def idle() -> None:
    """Let everything that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    loop = Clock()
    for module in (sharing_module, share_module):
        monkeypatch.setattr(module, "monotonic", loop.time)
    yield loop
    loop.close()


def run(clock: Clock, work: Coroutine[Any, Any, None]) -> None:
    clock.run_until_complete(work)


async def pass_s(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Clock)
    loop.now_s += seconds
    await idle()


# --- at random ----------------------------------------------------------------------------------------------------

WHO = st.sampled_from(["", "anna", "berta"])
ACTS = st.one_of(
    st.tuples(st.just("ask"), WHO, st.booleans()),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("withdraw"), st.integers(0, 9)),
    st.tuples(st.just("say"), st.integers(0, 9)),
    st.tuples(st.just("end"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("hear"), st.integers(0, 9)),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 1.0, 2.5])),
)


async def _act(house: House, clients: list[Client], act: tuple[Any, ...]) -> None:
    match act:
        case ("ask", who, greedy):
            clients.append(await ask(house, spec(who, temperature=0 if greedy else 1)))
        case ("leave" | "withdraw" | "hear" as what, number) if clients:
            client = clients[number % len(clients)]
            if what == "withdraw" and client.held.last is None and not await client.held.withdraw():
                return
            if what == "hear":
                await client.hear()
            else:
                clients.remove(client)
                await client.leave()
        case ("say" | "end" as what, number, *failed) if jobs := [job for job in house.jobs if not job.left]:
            job = jobs[number % len(jobs)]
            last: list[Delta] = [] if what == "say" else [FAILURE if failed[0] else END]
            job.say(TextDelta(str(len(job.said))), *last)
        case ("pass", seconds):
            await pass_s(seconds)
    await idle()


async def _live(acts: list[tuple[Any, ...]]) -> None:
    house, clients = House(), list[Client]()
    for act in acts:
        await _act(house, clients, act)
        held = {client.held.spec.id for client in clients}
        assert not any(job.cancelled for job in house.jobs if job.spec.id in held)
        for client in clients:
            job = next(job for job in house.jobs if job.spec.id == client.held.spec.id)
            assert client.heard == job.said[: len(client.heard)]
    for client in clients:
        await client.hear()
        assert client.heard == next(job.said for job in house.jobs if job.spec.id == client.held.spec.id)
        await client.leave()
    await pass_s(LINGER_S)
    assert [job.left for job in house.jobs] == [1] * len(house.jobs)
    assert [job.cancelled for job in house.jobs] == [int(job.last is None) for job in house.jobs]
    await house.sharing.settle(1)


@settings(deadline=None, max_examples=150)
@given(st.lists(ACTS, max_size=30))
def test_whatever_clients_do_everybody_hears_all_and_a_job_is_given_up_once_when_the_last_has_gone(
    acts: list[tuple[Any, ...]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        loop = Clock()
        for module in (sharing_module, share_module):
            patch.setattr(module, "monotonic", loop.time)
        try:
            loop.run_until_complete(_live(acts))
        finally:
            loop.close()


# --- who shares ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (spec(), spec(), True),
        (spec("anna"), spec("berta"), True),
        (spec("anna"), spec(), True),
        (spec(), spec(level=0), True),
        (spec(), spec(text="other"), False),
        (spec(), spec(key_name="another"), False),
        (spec("anna", temperature=1), spec("anna", temperature=1), False),
        (spec("anna", temperature=None), spec("anna", temperature=None), False),
        (spec("anna", temperature=1), spec("berta", temperature=1), False),
        (spec(temperature=1), spec(temperature=1), False),
        (spec("anna", temperature=1), spec("anna", temperature=0.9), False),
    ],
)
def test_who_shares_a_job(clock: Clock, first: JobSpec, second: JobSpec, together: bool) -> None:
    async def both() -> None:
        house, before = House(), metrics.COALESCED._value.get()
        clients = [await ask(house, first), await ask(house, second)]
        assert len(house.jobs) == 2 - together
        assert [client.held.shared for client in clients] == [False, together]
        assert house.sharing.coalesced == metrics.COALESCED._value.get() - before == together
        assert [client.held.counts("end") for client in clients] == [True, not together]
        assert not any(client.held.counts("end") for client in clients)
        for client in clients:
            await client.leave()

    run(clock, both())


def test_nobody_shares_and_nobody_is_waited_for_when_it_is_off(clock: Clock) -> None:
    async def both() -> None:
        house = House(coalesce=False)
        clients = [await ask(house, spec("anna")) for _ in range(2)]
        assert len(house.jobs) == 2
        house.jobs[0].say(TextDelta("a"))
        await idle()
        await clients[0].leave()
        assert [job.cancelled for job in house.jobs] == [1, 0]
        await clients[1].leave()

    run(clock, both())


def test_a_question_asked_again_after_its_answer_is_a_new_one(clock: Clock) -> None:
    async def twice() -> None:
        house = House()
        first, slow = await ask(house, spec()), await ask(house, spec())
        house.jobs[0].say(TextDelta("a"), END)
        await idle()
        await first.hear()
        while_read = await ask(house, spec())
        assert while_read.held.shared, "temperature 0, and the slow one still reads"
        await slow.hear()
        again = await ask(house, spec())
        assert not again.held.shared
        for client in (first, slow, while_read, again):
            await client.leave()

    run(clock, twice())


# --- errors -------------------------------------------------------------------------------------------------------


def test_what_keeps_the_job_from_being_placed_is_told_to_all(clock: Clock) -> None:
    async def both() -> None:
        house = House()
        house.places.clear()
        house.refuses = QueueFull("all lines are full", retry_after_s=3)
        asking = [asyncio.create_task(ask(house, spec())) for _ in range(2)]
        await idle()
        house.places.set()
        told = await asyncio.gather(*asking, return_exceptions=True)
        assert told == [house.refuses] * 2
        assert len(house.jobs) == 1
        house.refuses = None
        later = await ask(house, spec())
        assert not later.held.shared
        await later.leave()

    run(clock, both())


def test_one_who_may_wait_longer_than_the_first_is_not_refused_for_it(clock: Clock) -> None:
    async def both() -> None:
        house = House()
        house.places.clear()
        house.refuses = WaitedTooLong("a slot is expected in 100 s", retry_after_s=3)
        asking = [asyncio.create_task(ask(house, spec()))]
        asking += [asyncio.create_task(ask(house, spec("anna", wait_limit_ms=600_000))) for _ in range(2)]
        await idle()
        house.refuses_next_only = True
        house.places.set()
        await idle()
        assert isinstance(asking[0].exception(), WaitedTooLong)
        patient = [await task for task in asking[1:]]
        assert len(house.jobs) == 2, "they share the next one"
        for client in patient:
            await client.leave()

    run(clock, both())


def test_the_first_may_hang_up_while_the_job_is_being_placed(clock: Clock) -> None:
    async def both() -> None:
        house = House()
        house.places.clear()
        asking = [asyncio.create_task(ask(house, spec())) for _ in range(2)]
        await idle()
        asking[0].cancel()
        await idle()
        house.places.set()
        second = await asking[1]
        house.jobs[0].say(TextDelta("a"), END)
        await idle()
        await second.hear()
        assert second.heard == house.jobs[0].said
        assert (len(house.jobs), house.jobs[0].cancelled) == (1, 0)
        await second.leave()

    run(clock, both())


def test_each_that_was_told_that_its_prompt_is_too_long_may_compact(clock: Clock) -> None:
    async def both() -> None:
        house = House()
        clients = [await ask(house, spec(name)) for name in ("anna", "berta")]
        house.jobs[0].say(Failed(PromptTooLong.code, "prompt is too long"))
        await idle()
        for client in clients:
            await client.hear()
            await client.leave()
        assert house.jobs[0].told == ["berta"]  # of the first the dispatcher takes care

    run(clock, both())


# --- levels and limits --------------------------------------------------------------------------------------------


def test_the_most_urgent_sets_the_level_and_the_most_patient_the_limit(clock: Clock) -> None:
    async def several() -> None:
        house = House()
        clients = [await ask(house, spec(level=5))]
        clients.append(await ask(house, spec(level=7)))
        clients.append(await ask(house, spec(level=2)))
        clients.append(await ask(house, spec("anna", level=9, wait_limit_ms=600_000)))
        assert house.lifted == [(5, 2, 35_000), (2, 2, 605_000)]
        assert house.jobs[0].spec.level == 2
        house.jobs[0].say(TextDelta("a"))
        await idle()
        clients.append(await ask(house, spec(level=0)))
        assert len(house.lifted) == 2  # it runs
        for client in clients:
            await client.leave()

    run(clock, several())


def test_a_job_that_cannot_be_raised_is_shared_all_the_same(clock: Clock) -> None:
    async def both() -> None:
        house = House()
        house.broker_down = True
        clients = [await ask(house, spec()), await ask(house, spec(level=1))]
        assert clients[1].held.shared
        for client in clients:
            await client.leave()

    run(clock, both())


# --- leaving ------------------------------------------------------------------------------------------------------


def test_an_identified_client_is_waited_for_only_while_its_answer_runs(clock: Clock) -> None:
    async def two() -> None:
        house = House()
        await (await ask(house, spec("anna"))).leave()
        assert house.jobs[0].cancelled == 1  # it waited in its line
        client = await ask(house, spec("anna"))
        house.jobs[1].say(TextDelta("a"))
        await idle()
        await client.leave()
        await pass_s(LINGER_S - 0.1)
        assert house.jobs[1].cancelled == 0
        await pass_s(0.2)
        assert house.jobs[1].cancelled == 1

    run(clock, two())


def test_a_client_that_asks_something_else_is_not_waited_for(clock: Clock) -> None:
    async def two() -> None:
        house = House()
        client = await ask(house, spec("anna"))
        house.jobs[0].say(TextDelta("a"))
        await idle()
        await client.leave()
        other = await ask(house, spec("anna", text="something else"))
        await idle()
        assert [job.cancelled for job in house.jobs] == [1, 0]
        await other.leave()

    run(clock, two())


def test_leaving_may_be_cancelled_and_the_job_is_given_up_all_the_same(clock: Clock) -> None:
    async def one() -> None:
        house = House()
        client = await ask(house, spec())
        leaving = asyncio.create_task(client.leave())
        await asyncio.sleep(0)
        leaving.cancel()
        await idle()
        assert house.jobs[0].cancelled == 1

    run(clock, one())


def test_one_that_comes_while_the_job_is_taken_out_of_its_line_has_a_job_of_its_own(clock: Clock) -> None:
    async def two() -> None:
        house = House()
        first = await ask(house, spec())
        withdrawing = asyncio.create_task(first.held.withdraw())
        await asyncio.sleep(0)
        second = await ask(house, spec())
        assert await withdrawing
        assert not second.held.shared
        await first.leave()
        assert [job.cancelled for job in house.jobs] == [1, 0]
        await second.leave()

    run(clock, two())


def test_one_that_comes_as_the_last_leaves_is_answered(clock: Clock) -> None:
    async def two() -> None:
        house = House()
        first = await ask(house, spec())
        leaving = asyncio.create_task(first.leave())
        second = await ask(house, spec())
        await leaving
        house.jobs[-1].say(TextDelta("a"), END)
        await idle()
        await second.hear()
        assert second.heard == [TextDelta("a"), END]
        await second.leave()

    run(clock, two())
