"""The life of a job as its API process sees it: whatever ends the block, the job is given back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from infra.celery_app import build
from infra.config import Settings
from infra.errors import BrokerDown, NoWorker
from infra.redis_client import READ_TIMEOUT_S, async_client
from scheduler import dispatch
from scheduler.admitting import Admission
from scheduler.contract import Failed, Finished, Kind, StopReason, TextDelta, encode_deltas
from scheduler.dispatch import Dispatcher
from scheduler.follow import Follower
from scheduler.jobs import Jobs
from scheduler.membership import APART_S, Membership
from scheduler.placing import AT_ONCE
from scheduler.queue import Tickets
from tests.doubles.broker import Broker
from tests.integration.scheduler.store import API, Store, forecast_of, spec, to

pytestmark = pytest.mark.integration

WAIT_S = 20
LONG_MS = 600_000  # many at once: whoever is placed after others sees their line, and is let in all the same
LAST = Failed("engine_lost", "gone")


@asynccontextmanager
async def dispatching(store: Store) -> AsyncIterator[Dispatcher]:
    """A dispatcher that has seen the store's workers."""
    reader = async_client(store.url, connections=1, timeout_s=READ_TIMEOUT_S)
    follower, membership = Follower(reader, API), Membership(store.redis)
    tickets = Tickets(build(Settings(redis_url=store.url)))
    membership.view, membership.fresh = await membership.read(), True
    reading = asyncio.create_task(follower.run())
    try:
        yield Dispatcher(membership, store.jobs, tickets, follower, 1.25, forecast_of(store))
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        tickets.close()
        await reader.aclose()


async def until_gone(store: Store, job_id: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while await store.jobs.whereabouts(job_id):  # noqa: ASYNC110  # only the broker can show it
            await asyncio.sleep(0)


async def test_a_job_is_served_and_then_forgotten(store: Store) -> None:
    worker = store.worker()
    job = spec()
    async with dispatching(store) as dispatcher, dispatcher.submit(job) as placed:
        assert (placed.worker, sum(store.tickets())) == ("w1", 1)
        claimed = worker.claims.claim()
        assert claimed is not None
        worker.append(claimed, 1, encode_deltas([TextDelta("a")]), "")
        worker.append(claimed, 2, encode_deltas([LAST]), "failed")
        found = await placed.next(WAIT_S)
        while placed.last is None:
            found += await placed.next(WAIT_S)
        assert found == [TextDelta("a"), LAST]
    assert await store.jobs.whereabouts(job.id) is None
    assert store.written(job.id) == []


async def test_leaving_early_gives_the_place_and_the_ticket_back(store: Store) -> None:
    store.worker()
    job = spec()
    async with dispatching(store) as dispatcher:
        with pytest.raises(KeyError):
            async with dispatcher.submit(job):
                raise KeyError
    assert (store.line(), sum(store.tickets()), store.state(job.id)) == ([], 0, None)


async def test_of_many_that_come_at_once_a_few_are_placed_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit for placing is the broker's: nobody's runs while this process works for hundreds of others."""
    store.worker()
    admit, now, most = Jobs.admit, 0, 0

    async def counted(*given: Any, **named: Any) -> Admission:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            return await admit(*given, **named)
        finally:
            now -= 1

    monkeypatch.setattr(Jobs, "admit", counted)
    async with dispatching(store) as dispatcher:

        async def ask() -> None:
            async with dispatcher.submit(spec(wait_limit_ms=LONG_MS)):
                pass

        await asyncio.gather(*(ask() for _ in range(48)))
        assert 1 < most <= AT_ONCE
        assert dispatcher._placing._value == AT_ONCE, "all turns have been given back"
    assert store.line() == []


async def test_a_refused_job_is_not_followed(store: Store) -> None:
    async with dispatching(store) as dispatcher:
        with pytest.raises(NoWorker, match="start one"):
            async with dispatcher.submit(spec()):
                pass


async def test_an_admission_cut_in_the_middle_leaves_no_job(store: Store) -> None:
    """Wherever the asking task is cancelled."""
    store.worker()
    async with dispatching(store) as dispatcher:

        async def ask() -> None:
            async with dispatcher.submit(spec()):
                await asyncio.Event().wait()

        for steps in range(0, 60, 3):
            task = asyncio.create_task(ask())
            for _ in range(steps):
                await asyncio.sleep(0)
            while not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=0.1)
        async with asyncio.timeout(WAIT_S):
            while store.line() or store.raw.keys("corral:job:*"):  # noqa: ASYNC110  # only the broker can show it
                await asyncio.sleep(0)


async def test_a_job_left_while_the_broker_was_away_is_given_back_when_it_is_back(
    own_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "GIVE_BACK_S", 0.05)
    store = Store(own_broker.url, own_broker.client)
    store.worker()
    job = spec()
    async with dispatching(store) as dispatcher:
        async with dispatcher.submit(job) as placed:
            own_broker.freeze()
            with pytest.raises(BrokerDown):
                await placed.vanished()
        own_broker.thaw()
        await until_gone(store, job.id)
        assert store.line() == []
    await store.close()


async def test_a_house_that_closes_has_given_every_job_back(store: Store) -> None:
    """Its requests are cancelled and nothing waits for them; then the clients of the broker are closed."""
    store.worker()
    waiting = asyncio.Semaphore(0)

    async def ask(dispatcher: Dispatcher) -> None:
        async with dispatcher.submit(spec(wait_limit_ms=LONG_MS)):
            waiting.release()
            await asyncio.Event().wait()

    async with dispatching(store) as dispatcher, asyncio.TaskGroup() as group:  # one that is refused ends the test
        await dispatcher.settle(WAIT_S)
        asking = [group.create_task(ask(dispatcher)) for _ in range(16)]
        for _ in asking:
            await waiting.acquire()
        for task in asking:
            task.cancel()
        await dispatcher.settle(WAIT_S)
        assert (store.line(), store.raw.keys("corral:job:*")) == ([], [])


async def test_withdrawing_twice_says_twice_that_it_is_gone(store: Store) -> None:
    """The first answer may be lost on the way; a job that runs is never said to be gone."""
    worker = store.worker()
    async with dispatching(store) as dispatcher:
        async with dispatcher.submit(spec()) as waits:
            assert [await waits.withdraw(), await waits.withdraw()] == [True, True]
        async with dispatcher.submit(spec()) as runs:
            assert worker.claims.claim()
            assert not await runs.withdraw()


async def test_a_job_that_was_moved_is_known_to_be_elsewhere(store: Store) -> None:
    store.worker("w1")
    job = spec()
    async with dispatching(store) as dispatcher:
        async with dispatcher.submit(job) as placed:
            store.worker("w2")
            assert await store.jobs.move(job.id, "w1", to("w2"), job.level, job.identity.conversation)
            assert not await placed.vanished()
            assert placed.worker == "w2"
        assert (store.line("w2"), await store.jobs.whereabouts(job.id)) == ([], None)


async def test_a_job_for_one_worker_goes_to_it_alone_and_leaves_no_home(store: Store) -> None:
    store.worker("w1")
    store.worker("w2")
    async with dispatching(store) as dispatcher:
        for name in ("w1", "w2"):
            job = spec(9, kind=Kind.WARM, conversation="same")
            async with dispatcher.submit(job, only=name) as placed:
                assert (placed.worker, store.line(name)) == (name, [job.id])
        with pytest.raises(NoWorker):
            async with dispatcher.submit(spec(9), only="w3"):
                pass
    assert store.home("same") is None


async def test_a_warm_up_says_nothing_of_how_long_answers_take(store: Store) -> None:
    worker = store.worker()
    slow = Finished(StopReason.MAX_TOKENS, None, 1, 0, 1, 60_000, 0, "hash", 1)
    async with dispatching(store) as dispatcher:
        before_s = dispatcher.usual_answer_s
        async with dispatcher.submit(spec(9, kind=Kind.WARM), only="w1") as placed:
            claimed = worker.claims.claim()
            assert claimed is not None
            worker.append(claimed, 1, encode_deltas([slow]), "done")
            while placed.last is None:
                await placed.next(WAIT_S)
        assert dispatcher.usual_answer_s == before_s


async def test_nobody_is_refused_by_a_look_that_is_older_than_the_worker_s_readiness(store: Store) -> None:
    async with dispatching(store) as dispatcher:
        with pytest.raises(NoWorker):
            async with dispatcher.submit(spec()):
                pass
        store.worker()
        dispatcher._membership._read_s -= APART_S  # the refused one has just looked
        async with dispatcher.submit(spec()) as placed:
            assert placed.worker == "w1"
