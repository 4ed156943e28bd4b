"""Requests that come close together: who is gathered, for how long, and where a gathering goes."""

import asyncio
from collections.abc import Coroutine, Iterator
from math import log
from typing import Any

import pytest

from scheduler import gathering as module
from scheduler.contract import ClusterView, JobSpec, SlotInfo, WorkerInfo, WorkerState, WorkerView
from scheduler.gathering import Gathering, window_s
from tests.unit.scheduler.test_sharing import Clock, idle, pass_s, run
from tests.unit.scheduler.test_sharing import spec as any_spec

pytestmark = pytest.mark.unit


def spec(agent: str = "", tokens: int = 100) -> JobSpec:
    return any_spec(agent).model_copy(update={"prompt_tokens": tokens})


def worker(
    name: str, slots: int = 4, running: int = 0, state: WorkerState = WorkerState.READY, window: int = 0
) -> WorkerView:
    infos = tuple(SlotInfo(slot=number) for number in range(slots))
    info = WorkerInfo(name=name, incarnation=name, state=state, model="m", slots=infos, prompt_limit_tokens=window)
    return WorkerView(info=info, running=running)


def gathering(*workers: WorkerView, on: bool = True) -> Gathering:
    view = ClusterView(now_ms=0, workers=workers or (worker("w1"), worker("w2", running=1)))
    return Gathering(lambda: view, on=on)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    loop = Clock()
    monkeypatch.setattr(module, "monotonic", loop.time)
    yield loop
    loop.close()


Asked = list[asyncio.Task[str | None]]


def ask(gathered: Gathering, *specs: JobSpec) -> Asked:
    return [asyncio.create_task(gathered.worker(one)) for one in specs]


def placed(tasks: Asked) -> list[str | None]:
    """Where each goes; "waits" for those not sent yet."""
    return [task.result() if task.done() else "waits" for task in tasks]


def check(clock: Clock, work: Coroutine[Any, Any, None]) -> None:
    run(clock, work)


@pytest.mark.parametrize(("batch", "seconds"), [(0, 0), (1, 0), (2, 0.05 * log(2)), (7, 0.05 * log(7)), (8, 0.1)])
def test_the_window_grows_with_the_batch_up_to_a_tenth_of_a_second(batch: int, seconds: float) -> None:
    assert window_s(batch) == pytest.approx(seconds)


def test_one_alone_does_not_wait(clock: Clock) -> None:
    async def one() -> None:
        tasks = ask(gathering(), spec())
        await idle()
        assert placed(tasks) == [None]

    check(clock, one())


@pytest.mark.parametrize(("window", "goes_to"), [(127, None), (128, "w1")])
def test_nobody_is_gathered_where_the_window_may_be_too_small(clock: Clock, window: int, goes_to: str | None) -> None:
    async def three() -> None:
        tasks = ask(gathering(worker("w1", window=window)), *(spec(tokens=100) for _ in range(3)))
        await idle()
        await pass_s(0.1)
        assert placed(tasks) == [None, goes_to, goes_to]

    check(clock, three())


def test_those_that_come_close_together_go_to_the_worker_with_most_room(clock: Clock) -> None:
    async def three() -> None:
        gathered = gathering()
        tasks = ask(gathered, *(spec() for _ in range(3)))
        await idle()
        assert placed(tasks) == [None, "waits", "waits"]  # the first did not know of the others
        await pass_s(window_s(3) + 0.001)
        assert placed(tasks) == [None, "w1", "w1"]

    check(clock, three())


def test_a_gathering_that_fills_a_worker_goes_at_once_and_the_next_one_elsewhere(clock: Clock) -> None:
    async def many() -> None:
        gathered = gathering()
        tasks = ask(gathered, *(spec() for _ in range(8)))
        await idle()
        assert placed(tasks) == [None, *["w1"] * 4, *["w2"] * 3]

    check(clock, many())


@pytest.mark.parametrize(
    ("gathered", "second"),
    [
        (gathering(), spec("anna")),
        (gathering(), spec(tokens=1000)),
        (gathering(on=False), spec()),
        (gathering(worker("w1", running=4)), spec()),
        (gathering(worker("w1", state=WorkerState.LOADING)), spec()),
    ],
    ids=["identity", "length", "off", "no room", "nobody able"],
)
def test_who_is_not_gathered(clock: Clock, gathered: Gathering, second: JobSpec) -> None:
    async def two() -> None:
        tasks = ask(gathered, spec(), second)
        await idle()
        assert placed(tasks) == [None, None]

    check(clock, two())


def test_those_of_a_tenth_of_a_second_ago_are_not_of_the_batch(clock: Clock) -> None:
    async def two() -> None:
        gathered = gathering()
        first = ask(gathered, spec())
        await idle()
        await pass_s(0.11)
        second = ask(gathered, spec())
        await idle()
        assert placed(first + second) == [None, None]

    check(clock, two())


def test_one_that_leaves_a_gathering_costs_the_others_nothing(clock: Clock) -> None:
    async def three() -> None:
        tasks = ask(gathering(), *(spec() for _ in range(3)))
        await idle()
        tasks[1].cancel()
        await pass_s(0.2)
        assert tasks[1].cancelled()
        assert placed(tasks[2:]) == ["w1"]

    check(clock, three())
