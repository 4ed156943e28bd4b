"""Warm-up: one base at a time, to every engine that comes up, and never for ever."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from api import warming as module
from api.closing import Closing
from api.protocol.base import Base, base_of
from api.protocol.request import Reading
from api.warming import TRIES, Warming, engine_of
from infra.errors import BrokerDown, NoWorker, Refused
from infra.warm_files import read
from scheduler.contract import (
    ClusterView,
    Delta,
    Failed,
    Finished,
    JobSpec,
    Kind,
    SlotInfo,
    StopReason,
    StoreInfo,
    WorkerInfo,
    WorkerState,
    WorkerView,
)
from scheduler.dispatch import Dispatcher
from scheduler.placed import Placed
from scheduler.warmups import Warmups

pytestmark = pytest.mark.unit

WAIT_S = 20
DONE = Finished(StopReason.MAX_TOKENS, None, 1000, 0, 1, 5, 1, "hash", 1)
BAD = Failed("prompt_too_long", "prompt is too long")
FULL = Failed(Refused.code, "every slot is somebody's")


def info(name: str, run: int = 1, *, slots: int = 2, owner: str | None = None, off: str = "") -> WorkerInfo:
    held = tuple(SlotInfo(slot=number, conversation=owner) for number in range(slots))
    state = WorkerState.READY
    store = StoreInfo(off=off)
    return WorkerInfo(
        name=name,
        incarnation=f"{name}-i",
        state=state,
        slots=held,
        engine_pid=run,
        model="m",
        model_hash="hash",
        store=store,
    )


class Cluster:
    """A dispatcher and the books: what is asked of whom; `answers` come in order, DONE when they are used up."""

    def __init__(self, *workers: WorkerInfo) -> None:
        self.show(*workers)
        self.asked: list[tuple[str, str]] = []
        self.specs: list[JobSpec] = []
        self.answers: list[Delta | Exception] = []
        self.failed: list[int] = []
        self.open = self.most_open = 0
        self.books: dict[str, dict[str, int | None]] = {}
        self.locks: set[str] = set()
        self.changed = asyncio.Condition()

    def show(self, *workers: WorkerInfo) -> None:
        self.view = ClusterView(now_ms=0, workers=tuple(WorkerView(info=worker) for worker in workers))

    @asynccontextmanager
    async def submit(self, spec: JobSpec, only: str | None = None) -> AsyncIterator[Placed]:
        assert only is not None
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        self.specs.append(spec)
        self.asked.append((only, spec.identity.conversation))
        answer = self.answers.pop(0) if self.answers else DONE
        try:
            if isinstance(answer, Exception):
                raise answer
            placed = SimpleNamespace(last=None)

            async def come(_: float) -> list[Delta]:
                await asyncio.sleep(0)
                placed.last = answer
                return [answer]

            placed.next = come
            yield cast(Placed, placed)
        finally:
            self.open -= 1
            await self._told()

    async def take(self, what: str) -> bool:
        mine = what not in self.locks
        self.locks.add(what)
        return mine

    async def renew(self, *whats: str) -> None:
        assert self.locks.issuperset(whats)

    async def give_back(self, what: str) -> None:
        self.locks.discard(what)

    async def failures(self, engine: str) -> dict[str, int | None]:
        return dict(self.books.get(engine, {}))

    async def done(self, engine: str, base: str) -> None:
        self.books.setdefault(engine, {})[base] = None
        await self._told()

    async def failed_times(self, engine: str, base: str, times: int) -> None:
        self.books.setdefault(engine, {})[base] = times
        self.failed.append(times)
        await self._told()

    async def _told(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(true)


@pytest.fixture
def bases(tmp_path: Path) -> list[Base]:
    paths = [tmp_path / f"{name}.txt" for name in "ab"]
    for path in paths:
        path.write_text(path.name)
    return [base_of(file, Reading()) for file in read(paths)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PERIOD_S", "PAUSE_S"):
        monkeypatch.setattr(module, name, 0.001)


@asynccontextmanager
async def warming(cluster: Cluster, bases: list[Base], closing: Closing | None = None) -> AsyncIterator[None]:
    books = SimpleNamespace(
        take=cluster.take,
        renew=cluster.renew,
        give_back=cluster.give_back,
        failures=cluster.failures,
        done=cluster.done,
        failed=cluster.failed_times,
    )
    made = Warming(bases, cast(Dispatcher, cluster), cast(Warmups, books), closing or Closing(1))
    task = asyncio.create_task(made.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def wanted(worker: str, bases: list[Base]) -> list[tuple[str, str]]:
    return [(worker, f"warm-{base.chain.base}") for base in bases]


async def test_every_worker_is_asked_for_every_base_once(bases: list[Base]) -> None:
    cluster = Cluster(info("w1"), info("w2"))
    async with warming(cluster, bases):
        await cluster.until(lambda: sum(map(len, cluster.books.values())) == 4)
        assert sorted(cluster.asked) == sorted(wanted("w1", bases) + wanted("w2", bases))
    assert {(spec.level, spec.identity.kind, spec.request.model) for spec in cluster.specs} == {(9, Kind.WARM, "m")}


async def test_one_base_at_a_time_is_asked_of_a_worker(bases: list[Base]) -> None:
    cluster = Cluster(info("w1"))
    async with warming(cluster, bases):
        await cluster.until(lambda: len(cluster.books.get(engine_of(info("w1")), {})) == 2)
    assert (cluster.most_open, cluster.locks) == (1, set())


async def test_one_worker_at_a_time_makes_a_base_and_the_other_makes_another_meanwhile(bases: list[Base]) -> None:
    cluster = Cluster(info("w1"), info("w2"))
    first = f"hash:{bases[0].chain.base}"
    cluster.locks.add(first)
    async with warming(cluster, bases):
        await cluster.until(lambda: [list(book) for book in cluster.books.values()] == [[bases[1].chain.base]] * 2)
        cluster.locks.remove(first)
        await cluster.until(lambda: sum(map(len, cluster.books.values())) == 4)
    assert len(cluster.asked) == 4


async def test_a_new_engine_of_the_same_worker_is_warmed_up_again(bases: list[Base]) -> None:
    cluster = Cluster(info("w1"))
    async with warming(cluster, bases[:1]):
        await cluster.until(lambda: len(cluster.books) == 1)
        cluster.show(info("w1", run=2))
        await cluster.until(lambda: len(cluster.books) == 2)
    assert cluster.asked == wanted("w1", bases[:1]) * 2


async def test_a_failure_is_tried_again_three_times_and_holds_up_no_other_base(bases: list[Base]) -> None:
    cluster = Cluster(info("w1"))
    cluster.answers = [BAD, DONE, BAD, BAD, BAD]
    async with warming(cluster, bases):
        await cluster.until(lambda: len(cluster.failed) == TRIES)
    assert cluster.failed == [1, 2, 3, 4]
    first, second = wanted("w1", bases)
    assert cluster.asked == [first, second, first, first, first]


@pytest.mark.parametrize("refusal", [NoWorker("none"), BrokerDown("away"), FULL])
async def test_what_cannot_be_now_does_not_count_as_a_failure(bases: list[Base], refusal: Delta | Exception) -> None:
    cluster = Cluster(info("w1"))
    cluster.answers = [refusal] * (TRIES + 2)
    async with warming(cluster, bases[:1]):
        await cluster.until(lambda: len(cluster.books) == 1)
    assert (len(cluster.asked), cluster.failed) == (TRIES + 3, [])


async def test_a_worker_whose_slots_are_all_somebodys_is_left_alone_until_one_is_free(bases: list[Base]) -> None:
    cluster = Cluster(info("w1", owner="c"), info("w2"))
    async with warming(cluster, bases):
        await cluster.until(lambda: len(cluster.books.get(engine_of(info("w2")), {})) == 2)
        assert {worker for worker, _ in cluster.asked} == {"w2"}
        cluster.show(info("w1"), info("w2"))
        await cluster.until(lambda: len(cluster.books) == 2)


async def test_what_another_process_did_is_not_done_again(bases: list[Base]) -> None:
    cluster = Cluster(info("w1"))
    engine = engine_of(info("w1"))
    cluster.locks.add(engine)
    async with warming(cluster, bases):
        await asyncio.sleep(0)
        cluster.books[engine] = {bases[0].chain.base: None}
        cluster.locks.remove(engine)
        await cluster.until(lambda: bases[1].chain.base in cluster.books[engine])
    assert cluster.asked == wanted("w1", bases[1:])


async def test_where_nothing_is_saved_no_more_bases_are_asked_for_than_there_are_slots(bases: list[Base]) -> None:
    cluster = Cluster(info("w1", slots=1, off="store_dir is off"), info("w2"))
    async with warming(cluster, bases):
        await cluster.until(lambda: sum(map(len, cluster.books.values())) == 3)
    assert sorted(cluster.asked) == sorted(wanted("w1", bases[:1]) + wanted("w2", bases))


async def test_it_ends_with_the_house(bases: list[Base]) -> None:
    closing = Closing(1)
    closing.begin()
    cluster = Cluster(info("w1"))
    made = Warming(bases, cast(Dispatcher, cluster), cast(Warmups, None), closing)
    async with asyncio.timeout(WAIT_S):
        await made.run()
    assert cluster.asked == []
