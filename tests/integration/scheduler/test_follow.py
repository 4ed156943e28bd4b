"""One reader for all streams of an API process: nothing lost, nothing twice, whatever the broker does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from time import monotonic
from typing import Any

import pytest
from redis import RedisError
from redis.asyncio import Redis

from infra import keys
from infra.redis_client import READ_TIMEOUT_S, async_client
from scheduler import scripts
from scheduler.contract import Delta, TextDelta, encode_deltas
from scheduler.follow import APART_S, GIVES_WAY_S, Feed, Follower
from tests.doubles.broker import Broker

pytestmark = pytest.mark.integration

API = "api-of-test"
WAIT_S = 20
STREAMS = 300
ENTRIES = 10
CLOCK_SLACK_S = 0.001  # an event loop rounds its timers to a millisecond


@asynccontextmanager
async def following(url: str) -> AsyncIterator[tuple[Follower, Redis]]:
    """A running follower, with a client to write with."""
    reader = async_client(url, connections=1, timeout_s=READ_TIMEOUT_S)
    writer = async_client(url, connections=8, timeout_s=WAIT_S)
    follower = Follower(reader, API)
    task = asyncio.create_task(follower.run())
    try:
        yield follower, writer
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await reader.aclose()
        await writer.aclose()


async def write(client: Redis, name: str, *numbers: int) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in numbers:
        pipeline.xadd(name, {"d": encode_deltas([TextDelta(str(number))])}, id=f"1-{number}")
    await pipeline.execute()


def reads(follower: Follower) -> tuple[list[float], list[float]]:
    """When each read from now on began, and when it was answered."""
    asked_s: list[float] = []
    answered_s: list[float] = []
    ask = follower._line.ask

    async def counted(command: Any) -> Any:
        asked_s.append(monotonic())
        answer = await ask(command)
        answered_s.append(monotonic())
        return answer

    follower._line.ask = counted  # type: ignore[assignment, method-assign]
    return asked_s, answered_s


async def read(feed: Feed, count: int) -> list[Delta]:
    found: list[Delta] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await feed.deltas(WAIT_S)
    return found


def texts(*numbers: int) -> list[TextDelta]:
    return [TextDelta(str(number)) for number in numbers]


async def test_three_hundred_streams_share_one_connection_and_lose_nothing(broker: Broker) -> None:
    names = [f"stream-{number}" for number in range(STREAMS)]
    async with following(broker.url) as (follower, client), AsyncExitStack() as feeds:
        opened = [await feeds.enter_async_context(follower.follow(name)) for name in names]
        assert follower.followed == STREAMS
        await client.xadd(keys.wake(API), {"job": "all"})
        for number in range(1, ENTRIES + 1):
            for name in names:
                await write(client, name, number)
        for feed in opened:
            assert await read(feed, ENTRIES) == texts(*range(1, ENTRIES + 1))
            assert await feed.take(0) == []
    assert follower.followed == 0


async def test_entries_that_come_one_upon_the_other_are_read_together(broker: Broker) -> None:
    """No two reads begin sooner after each other than APART_S, however many entries come meanwhile."""
    async with following(broker.url) as (follower, client), follower.follow("stream") as feed:
        asked_s, _ = reads(follower)
        for number in range(1, 501):
            await write(client, "stream", number)
        assert await read(feed, 500) == texts(*range(1, 501))
    apart = [later - earlier for earlier, later in pairwise(asked_s)]
    assert len(apart) > 1
    assert min(apart) >= APART_S - CLOCK_SLACK_S


async def test_the_reader_gives_way_to_the_admission_for_which_it_wakes(broker: Broker) -> None:
    """From its rest, and out of a blocking read."""
    async with following(broker.url) as (follower, client):
        asked_s, answered_s = reads(follower)
        await asyncio.sleep(0)  # now it rests
        began_s = monotonic()
        async with follower.follow("stream") as feed:
            while not asked_s:  # noqa: ASYNC110  # only the reader's next turn shows it
                await asyncio.sleep(0)
            assert asked_s[0] - began_s >= GIVES_WAY_S - CLOCK_SLACK_S
            await asyncio.sleep(2 * APART_S)
            await client.xadd(keys.wake(API), {"job": "stream"})
            await write(client, "stream", 1)
            assert await read(feed, 1) == texts(1)
        assert asked_s[1] - answered_s[0] >= GIVES_WAY_S - CLOCK_SLACK_S


@pytest.mark.parametrize("protocol", [2, 3])
async def test_both_protocols_of_the_broker_are_read(broker: Broker, protocol: int) -> None:
    async with (
        following(f"{broker.url}?protocol={protocol}") as (follower, client),
        follower.follow("one") as one,
        follower.follow("other") as other,
    ):
        await write(client, "one", 1, 2)
        await write(client, "other", 1)
        assert (await read(one, 2), await read(other, 1)) == (texts(1, 2), texts(1))


async def test_a_stream_joins_in_the_middle_of_a_blocking_read(broker: Broker) -> None:
    async with following(broker.url) as (follower, client), follower.follow("first") as first:
        await write(client, "first", 1)
        assert await read(first, 1) == texts(1)  # the reader now blocks on streams that stay silent
        async with follower.follow("second") as second:
            await client.xadd(keys.wake(API), {"job": "second"})
            await write(client, "second", 1, 2)
            assert await read(second, 2) == texts(1, 2)
        await write(client, "first", 2)
        assert await read(first, 1) == texts(2)


async def test_what_stood_there_before_is_read_too(broker: Broker) -> None:
    async with following(broker.url) as (follower, client):
        await write(client, "early", 1, 2, 3)
        async with follower.follow("early") as feed:
            assert await read(feed, 3) == texts(1, 2, 3)


async def test_the_follower_rests_without_streams_and_wakes_for_the_next(broker: Broker) -> None:
    async with following(broker.url) as (follower, client):
        for name in ("one", "two"):
            async with follower.follow(name) as feed:
                await write(client, name, 1)
                assert await read(feed, 1) == texts(1)


async def test_a_stream_that_stays_silent_gives_nothing_in_time(broker: Broker) -> None:
    async with following(broker.url) as (follower, _), follower.follow("silent") as feed:
        assert await feed.take(0.01) == []


async def test_cut_connections_lose_and_repeat_nothing(broker: Broker) -> None:
    async with following(broker.url) as (follower, client), follower.follow("stream") as feed:
        for number in range(1, 31):
            await write(client, "stream", number)
            if number % 10 == 0:
                broker.client.client_kill_filter(_type="normal", skipme=True)
        assert await read(feed, 30) == texts(*range(1, 31))


async def test_a_broker_that_was_killed_and_came_back_with_its_data_goes_on(own_broker: Broker) -> None:
    async with following(own_broker.url) as (follower, client), follower.follow("stream") as feed:
        await write(client, "stream", 1, 2)
        assert await read(feed, 2) == texts(1, 2)
        kept = await client.dump("stream")
        assert kept is not None
        own_broker.kill()
        own_broker.start()
        await client.restore("stream", 0, kept)  # as a broker with persistence has it
        await write(client, "stream", 3, 4)
        assert await read(feed, 2) == texts(3, 4)


async def test_a_frozen_broker_is_waited_for(own_broker: Broker) -> None:
    async with following(own_broker.url) as (follower, client), follower.follow("stream") as feed:
        await write(client, "stream", 1)
        assert await read(feed, 1) == texts(1)
        own_broker.freeze()
        late = asyncio.create_task(write(client, "stream", 2))
        assert await feed.take(READ_TIMEOUT_S + 1) == []
        own_broker.thaw()
        await late
        assert await read(feed, 1) == texts(2)


async def test_three_hundred_streams_outlive_a_frozen_broker_without_gap_or_repetition(own_broker: Broker) -> None:
    """redis-py sends a write again that was not answered in time, and both copies are carried out: the entry's own
    number makes one of them."""
    names = [f"stream-{number}" for number in range(STREAMS)]
    async with following(own_broker.url) as (follower, client), AsyncExitStack() as feeds:
        opened = [await feeds.enter_async_context(follower.follow(keys.stream(name))) for name in names]
        impatient = async_client(own_broker.url, connections=8)
        append = impatient.register_script(scripts.text("append"))

        async def appended(name: str, number: int) -> None:
            names_of = [keys.job(name), keys.stream(name), keys.running("w1")]
            payload = encode_deltas([TextDelta(str(number))])
            while True:
                with contextlib.suppress(RedisError):
                    assert await append(names_of, [name, 1, number, payload, 60_000, ""]) == 1
                    return

        for name in names:
            await client.hset(keys.job(name), mapping={"state": "running", "attempt": 1})
        await client.xadd(keys.wake(API), {"job": "all"})
        await asyncio.gather(*(appended(name, 1) for name in names))
        own_broker.freeze()
        late = asyncio.gather(*(appended(name, 2) for name in names))
        await asyncio.sleep(READ_TIMEOUT_S + 1)  # the freeze is the subject
        own_broker.thaw()
        await late
        await asyncio.gather(*(appended(name, 3) for name in names))
        own = own_broker.client.client_list()
        assert len(own) < 30
        for feed in opened:
            assert await read(feed, 3) == texts(1, 2, 3)
            assert await feed.take(0) == []
        await impatient.aclose()


async def test_a_follower_ends_when_it_is_told_to_wherever_it_is(broker: Broker) -> None:
    reader = async_client(broker.url, connections=1, timeout_s=READ_TIMEOUT_S)
    for steps in range(20):
        follower = Follower(reader, API)
        async with follower.follow("stream"):
            task = asyncio.create_task(follower.run())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task], timeout=WAIT_S)
        assert task.done()
    await reader.aclose()
