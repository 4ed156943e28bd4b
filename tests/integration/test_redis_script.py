"""A script that is asked for with little in between answers and fails as one of redis-py's own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import hiredis
import pytest
import redis
from redis.asyncio import Redis

from infra.redis_client import async_client
from infra.redis_script import Line, Script
from tests.doubles.broker import Broker

pytestmark = pytest.mark.integration
PAUSE_MS = 10_000
ECHO = "return {KEYS[1], ARGV[1], ARGV[2], redis.call('INCR', KEYS[1])}"


@pytest.fixture
async def one(broker: Broker) -> AsyncIterator[Redis]:
    """A client with few connections: a script keeps one, so that what a command leaves behind meets the next."""
    client = async_client(broker.url, connections=3)
    yield client
    await client.aclose()


@asynccontextmanager
async def held_up(broker: Broker) -> AsyncIterator[None]:
    """The broker takes scripts but carries them out only afterwards."""
    broker.client.client_pause(PAUSE_MS, all=False)
    try:
        yield
    finally:
        broker.client.client_unpause()


async def is_asked(broker: Broker) -> None:
    """Return once a script waits there."""
    async with asyncio.timeout(PAUSE_MS / 1000):
        while not any("b" in client["flags"] for client in broker.client.client_list()):  # noqa: ASYNC110  # only the broker can show it
            await asyncio.sleep(0.01)


async def test_keys_and_arguments_reach_the_script_in_their_places(one: Redis) -> None:
    assert await Script(one, ECHO)(["n"], ["ä", 1.5]) == [b"n", "ä".encode(), b"1.5", 1]


async def test_a_broker_that_has_forgotten_the_script_is_told_it_again(one: Redis) -> None:
    script = Script(one, ECHO)
    await one.script_flush()
    assert (await script(["n"], [1, 2]))[-1] == 1
    await one.script_flush()
    assert (await script(["n"], [1, 2]))[-1] == 2


async def test_a_connection_that_was_dropped_while_it_rested_costs_no_answer(one: Redis, broker: Broker) -> None:
    script = Script(one, ECHO)
    await script(["n"], [1, 2])
    broker.client.client_kill_filter(skipme=True, _type="normal")
    assert (await script(["n"], [1, 2]))[-1] == 2


async def test_a_connection_that_breaks_under_a_command_is_tried_once_more(one: Redis, broker: Broker) -> None:
    asking = asyncio.create_task(Script(one, ECHO)(["n"], [1, 2]))
    async with held_up(broker):
        await is_asked(broker)
        broker.client.client_kill_filter(skipme=True, _type="normal")
        await is_asked(broker)
    assert (await asking)[-1] == 1


async def test_an_error_of_the_script_is_raised_and_the_connection_stays(one: Redis) -> None:
    with pytest.raises(redis.ResponseError, match="no good"):
        await Script(one, "return redis.error_reply('no good')")([], [])
    assert (await Script(one, ECHO)(["n"], [1, 2]))[-1] == 1


async def test_a_silent_broker_is_given_up_and_its_late_answer_is_nobodys(own_broker: Broker) -> None:
    client = async_client(own_broker.url, connections=3, timeout_s=0.2)
    script = Script(client, "return ARGV[1]")
    await script([], ["first"])
    own_broker.freeze()
    try:
        with pytest.raises(redis.TimeoutError):
            async with asyncio.timeout(20):
                await script([], ["late"])
    finally:
        own_broker.thaw()
    assert await script([], ["next"]) == b"next"
    await client.aclose()


async def test_the_answer_to_one_who_has_gone_is_nobodys(one: Redis, broker: Broker) -> None:
    script = Script(one, "return ARGV[1]")
    asking = asyncio.create_task(script([], ["gone"]))
    async with held_up(broker):
        await is_asked(broker)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert await script([], ["next"]) == b"next"


async def test_more_at_once_than_connections_are_kept_are_all_answered(broker: Broker) -> None:
    client = async_client(broker.url, connections=6)
    script = Script(client, ECHO)
    for _ in range(2):
        answers = await asyncio.gather(*(script(["n"], [number, ""]) for number in range(40)))
        assert [int(answer[1]) for answer in answers] == list(range(40))
    assert await client.get("n") == b"80"
    await client.aclose()


async def test_a_connection_that_a_script_gives_back_keeps_the_limit_of_all_others(own_broker: Broker) -> None:
    client = async_client(own_broker.url, connections=6, timeout_s=0.2)
    script = Script(client, ECHO)
    await asyncio.gather(*(script(["n"], [number, ""]) for number in range(6)))
    own_broker.freeze()
    try:
        with pytest.raises(redis.TimeoutError):
            async with asyncio.timeout(20):
                await client.get("n")
    finally:
        own_broker.thaw()
    await client.aclose()


SLOWLY_S, LIMIT_S = 0.3, 1.0  # each answer is in time, those of a connection's beginning together are not


async def answer_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A broker that is far away, or has much to do."""
    asked = hiredis.Reader()
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            asked.feed(data)
            while command := asked.gets():
                await asyncio.sleep(SLOWLY_S)
                hello, ping = (command[0].upper() == name for name in (b"HELLO", b"PING"))
                writer.write(b"%1\r\n$5\r\nproto\r\n:3\r\n" if hello else b"+PONG\r\n" if ping else b"+OK\r\n")
    writer.close()


async def test_a_connection_whose_beginning_takes_longer_than_one_answer_may_is_made_again() -> None:
    connections: list[asyncio.StreamWriter] = []

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await answer_slowly(reader, writer)

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = async_client(f"redis://127.0.0.1:{port}/0", timeout_s=LIMIT_S, name="far")
    line = Line(client)
    assert await line.ask(["PING"]) == b"PONG"
    connections[0].transport.abort()
    assert await line.ask(["PING"]) == b"PONG"
    assert len(connections) == 2
    await client.aclose()
    connections[1].transport.abort()
    server.close()
