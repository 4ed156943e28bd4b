"""The wait of a request, from its arrival to its start: refused at once, told, and compared with what it was."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from infra import keys
from infra.celery_app import build
from infra.config import Settings
from infra.errors import BrokerDown, QueueFull, Refused, WaitedTooLong
from infra.observability import metrics
from infra.redis_client import READ_TIMEOUT_S, async_client
from scheduler import lines
from scheduler.contract import JobSpec, Started, encode_deltas
from scheduler.dispatch import Dispatcher
from scheduler.follow import Follower
from scheduler.forecast import MOST_SHOWN, Forecast
from scheduler.membership import Membership
from scheduler.policy.claiming import Rules
from scheduler.policy.placement import Home
from scheduler.queue import Tickets
from scheduler.remembered import Remembered
from tests.doubles.broker import Broker
from tests.integration.scheduler.store import API, Store, Worker, candidates, forecast_of, packed, spec

pytestmark = pytest.mark.integration

WAIT_S = 20
SHORT_MS = 1000  # far less than an answer of which nothing is known


class House:
    """A dispatcher on the store, and the forecast in it; `look` takes a new snapshot."""

    def __init__(self, dispatcher: Dispatcher, membership: Membership) -> None:
        self.dispatcher = dispatcher
        self._membership = membership

    @property
    def forecast(self) -> Forecast:
        return self.dispatcher.forecast

    async def look(self) -> None:
        self._membership.view, self._membership.fresh = await self._membership.read(), True


@asynccontextmanager
async def housed(store: Store, queue_limit: int = 64, remembered: Remembered | None = None) -> AsyncIterator[House]:
    reader = async_client(store.url, connections=1, timeout_s=READ_TIMEOUT_S)
    follower, membership = Follower(reader, API), Membership(store.redis)
    tickets = Tickets(build(Settings(redis_url=store.url)))
    forecast = forecast_of(store, queue_limit)
    jobs = store.jobs_with(queue_limit, remembered)
    house = House(Dispatcher(membership, jobs, tickets, follower, 1.25, forecast), membership)
    await house.look()
    reading = asyncio.create_task(follower.run())
    try:
        yield house
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        tickets.close()
        await reader.aclose()


@asynccontextmanager
async def busy(store: Store, house: House, worker: Worker, waiting: int = 0) -> AsyncIterator[None]:
    """Both slots of the worker are at work inside the block, and so many others wait for one."""
    async with AsyncExitStack() as jobs:
        for number in range(2 + waiting):
            await jobs.enter_async_context(house.dispatcher.submit(spec(agent=f"busy{number}", wait_limit_ms=600_000)))
            if number < 2:
                assert worker.claims.claim(slots=2)
        await house.look()
        yield


def asking(name: str, *, limit_ms: int = SHORT_MS, identified: bool = True) -> JobSpec:
    made = spec(agent=name, wait_limit_ms=limit_ms)
    who = made.identity.model_copy(update={"identified": identified})
    return made.model_copy(update={"identity": who, "request": packed(name)})


def scripts_run(store: Store) -> int:
    return int(store.raw.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


async def refusal(house: House, job: JobSpec) -> Refused:
    with pytest.raises(Refused) as caught:
        async with house.dispatcher.submit(job):
            pass
    return caught.value


async def promised(house: House, worker: Worker, *jobs: JobSpec) -> None:
    """Each is refused and holds a promise; then a start makes room for one in the line."""
    for job in jobs:
        await refusal(house, job)
    assert worker.claims.claim(slots=3)
    await house.look()


# --- nobody waits -------------------------------------------------------------------------------------------------


async def test_with_a_free_slot_the_wait_is_none_and_the_broker_is_asked_for_nothing_more(store: Store) -> None:
    store.worker()
    async with housed(store) as house:
        async with house.dispatcher.submit(spec()):
            pass
        before = scripts_run(store)
        async with house.dispatcher.submit(asking("a")) as placed:
            assert placed.eta_ms == 0
            assert scripts_run(store) == before + 1  # the admission


async def test_a_free_slot_elsewhere_means_that_nobody_is_refused(store: Store) -> None:
    worker = store.worker("w1")
    async with housed(store) as house, busy(store, house, worker, waiting=3):
        store.worker("w2")
        await house.look()
        async with house.dispatcher.submit(asking("a")) as placed:
            assert (placed.worker, placed.eta_ms) == ("w2", 0)


async def test_a_slot_that_is_kept_for_urgent_levels_is_free_for_these_alone(store: Store) -> None:
    worker = store.worker()
    async with housed(store) as house, house.dispatcher.submit(spec(wait_limit_ms=600_000)):
        assert worker.claims.claim(slots=2)
        store.raw.set(keys.urgent("w1"), 1, px=600_000)
        await house.look()
        forecast = forecast_of(store, rules=Rules(urgent_share=0.5))
        asks = asking("a"), asking("b").model_copy(update={"level": 0})
        with pytest.raises(QueueFull):
            await forecast.let_in(asks[0], house.dispatcher.view, candidates("w1"), 1)
        await forecast.let_in(asks[1], house.dispatcher.view, candidates("w1"), 1)


async def test_a_job_that_has_ended_holds_no_place_though_the_snapshot_is_old(store: Store) -> None:
    """As when one quick answer follows another."""
    store.worker()
    async with housed(store, queue_limit=1) as house:
        await house.forecast.shown(house.dispatcher.view)  # a look at the lines that is as old
        for number in range(6):
            async with house.dispatcher.submit(asking(f"a{number}")) as placed:
                assert placed.eta_ms == 0


async def test_a_slot_that_came_free_since_the_last_look_means_that_nobody_is_refused(store: Store) -> None:
    worker = store.worker()
    async with housed(store) as house, AsyncExitStack() as elsewhere, busy(store, house, worker):
        await house.forecast.shown(house.dispatcher.view)
        for job_id in store.running():
            store.raw.hdel(keys.running("w1"), job_id)  # answers of other API processes ended
        placed = await elsewhere.enter_async_context(house.dispatcher.submit(asking("a")))
        assert placed.worker == "w1"


# --- refused at once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("identified", "kind"), [(True, QueueFull), (False, WaitedTooLong)])
async def test_a_wait_beyond_the_callers_limit_is_refused_at_once(
    store: Store, identified: bool, kind: type[Refused]
) -> None:
    worker = store.worker()
    async with housed(store) as house, busy(store, house, worker, waiting=2):
        error = await refusal(house, asking("a", identified=identified))
        assert type(error) is kind
        assert error.retry_after_s in range(1, 61)
        assert "a slot is expected in about" in error.message
        assert "may wait for 1 s; ask again in" in error.message
        assert len(store.line()) == 2
        assert house.forecast.refused == {"wait": 1, "full": 0}


async def test_one_that_may_wait_long_enough_is_let_in_and_told_how_long(store: Store) -> None:
    worker = store.worker()
    async with (
        housed(store) as house,
        busy(store, house, worker, waiting=2),
        house.dispatcher.submit(asking("a", limit_ms=600_000)) as placed,
    ):
        assert placed.eta_ms is not None
        assert placed.eta_ms > SHORT_MS


async def test_a_full_line_refuses_with_a_time_of_its_own_for_each(store: Store) -> None:
    worker = store.worker()
    async with housed(store, queue_limit=2) as house, busy(store, house, worker, waiting=2):
        told = [(await refusal(house, asking(f"a{n}", limit_ms=600_000))) for n in range(3)]
        assert all(type(error) is QueueFull and "queues are full" in error.message for error in told)
        seconds = [error.retry_after_s for error in told if error.retry_after_s]
        assert seconds == sorted(set(seconds))
        assert house.forecast.refused == {"wait": 0, "full": 3}


async def test_who_comes_back_at_its_time_is_let_in_before_newcomers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "FRESH_S", 0.0)
    worker = store.worker()
    async with housed(store, queue_limit=1) as house, busy(store, house, worker, waiting=1):
        first = asking("first", limit_ms=600_000)
        await promised(house, worker, first)
        assert "queues are full" in (await refusal(house, asking("new", limit_ms=600_000))).message
        before = metrics.PROMISES_KEPT._value.get()
        async with house.dispatcher.submit(first.model_copy(update={"id": "again"})):
            assert house.forecast.kept == metrics.PROMISES_KEPT._value.get() - before == 1


async def test_nobody_passes_a_promise_that_was_made_since_the_last_look(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "FRESH_S", 600.0)
    worker = store.worker()
    async with housed(store, queue_limit=1) as house, busy(store, house, worker, waiting=1):
        await promised(house, worker, asking("first", limit_ms=600_000))
        await house.forecast.shown(house.dispatcher.view)  # which looks at the lines alone
        another = asking("first", limit_ms=600_000).model_copy(update={"request": packed("another")})
        assert "queues are full" in (await refusal(house, another)).message


async def test_a_promise_is_kept_though_the_conversation_lives_elsewhere_by_now(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is placed a second time then, and the promise that lets it in is there once."""
    monkeypatch.setattr(lines, "FRESH_S", 0.0)
    worker = store.worker()
    remembered = Remembered()
    async with housed(store, queue_limit=1, remembered=remembered) as house, busy(store, house, worker, waiting=1):
        first = asking("first", limit_ms=600_000)
        await promised(house, worker, first, asking("second", limit_ms=600_000))
        remembered.lives(first.identity.conversation, Home("w1", 7))
        assert (await house.dispatcher._jobs.known(first)).remembered
        async with house.dispatcher.submit(first.model_copy(update={"id": "again"})) as placed:
            assert (placed.worker, house.forecast.kept) == ("w1", 1)


async def test_who_has_waited_in_vain_is_promised_a_place(store: Store) -> None:
    worker = store.worker()
    async with housed(store) as house, busy(store, house, worker, waiting=3):
        told = [await house.dispatcher.again_s(asking(name)) for name in ("first", "second", "first")]
        assert 1 <= told[0] < told[1] <= 60
        assert told[2] == pytest.approx(told[0], abs=1)
        assert store.raw.zcard(keys.promises("places", "m")) == 2


async def test_what_is_shown_does_not_wait_for_a_broker_that_is_away(own_broker: Broker) -> None:
    """And a request is told that it is the broker's fault."""
    store = Store(own_broker.url, own_broker.client)
    worker = store.worker()
    async with housed(store) as house, busy(store, house, worker, waiting=1):
        own_broker.freeze()
        try:
            assert len((await house.forecast.shown(house.dispatcher.view)).get("w1", [])) <= 1
            with pytest.raises(BrokerDown):
                async with house.dispatcher.submit(asking("a", limit_ms=600_000)):
                    pass
        finally:
            own_broker.thaw()
    await store.close()


# --- told and compared --------------------------------------------------------------------------------------------


async def test_the_line_is_shown_in_its_order_with_what_each_may_expect(store: Store) -> None:
    worker = store.worker()
    async with housed(store) as house, busy(store, house, worker, waiting=MOST_SHOWN + 5):
        shown = await house.forecast.shown(house.dispatcher.view)
        assert list(shown) == ["w1"]
        line = shown["w1"]
        assert [one["place"] for one in line] == list(range(1, MOST_SHOWN + 1))
        assert [one["agent"] for one in line[:2]] == ["busy2", "busy3"]
        expected = [one["expected_s"] for one in line]
        assert expected == sorted(expected)
        assert expected[0] > 0
        assert all(one["level"] == 5 and one["waited_s"] >= 0 for one in line)


async def test_what_was_told_is_compared_with_what_it_was(store: Store) -> None:
    worker = store.worker()
    async with housed(store) as house, busy(store, house, worker, waiting=0):
        async with house.dispatcher.submit(spec(agent="late")) as placed:
            claimed = worker.claims.claim(slots=3)
            assert claimed is not None
            assert placed.eta_ms
            started = Started("w1", 0, 1, placed.eta_ms + 300, 3, 0)
            worker.append(claimed, 1, encode_deltas([started]), "")
            assert await placed.next(WAIT_S) == [started]
        error = house.forecast.accuracy.error()
        assert (error.waits, error.median_ms, error.p90_ms) == (1, 300, 300)
