"""Hundreds who look after their jobs at once are answered together, each with what is true of its own."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from infra import keys
from infra.errors import BrokerDown
from infra.redis_client import async_client
from scheduler.whereabouts import TOGETHER, Whereabouts
from tests.doubles.broker import Broker
from tests.integration.scheduler.store import Store, spec

pytestmark = pytest.mark.integration
MANY = 5 * TOGETHER
SENT_AFTER = 50  # turns of the loop


def written(store: Store, number: int) -> str:
    """A job of which a third waits, a third runs, and a third is gone."""
    job_id, state = f"job{number}", ("queued", "running", "")[number % 3]
    if state:
        store.raw.hset(keys.job(job_id), mapping={"worker": f"w{number}", "state": state})
        store.raw.pexpire(keys.job(job_id), 60_000)
    return job_id


def counted(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets one entry with each round trip that is begun."""
    looks = list[int]()

    def pipeline(**options: Any) -> Pipeline:
        looks.append(1)
        return Redis.pipeline(redis, **options)

    monkeypatch.setattr(redis, "pipeline", pipeline)
    return looks


async def test_each_of_many_hears_of_its_own_job(store: Store) -> None:
    looking = Whereabouts(store.redis)
    found = await asyncio.gather(*(looking.find(written(store, number)) for number in range(MANY)))
    for number, one in enumerate(found):
        if number % 3 == 2:
            assert one is None
        else:
            assert one is not None
            worker, left_s, waits = one
            assert (worker, waits) == (f"w{number}", number % 3 == 0)
            assert 0 < left_s <= 60


async def test_many_take_one_connection_and_few_round_trips(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lonely = async_client(store.url, connections=1)
    before = int(store.raw.info("commandstats").get("cmdstat_pttl", {}).get("calls", 0))
    try:
        looking, looks = Whereabouts(lonely), counted(lonely, monkeypatch)
        found = await asyncio.gather(*(looking.find("unknown") for _ in range(MANY)))
    finally:
        await lonely.aclose()
    assert found == [None] * MANY
    assert len(looks) == 1 + MANY // TOGETHER  # the first one goes at once, alone
    assert int(store.raw.info("commandstats")["cmdstat_pttl"]["calls"]) - before == MANY


async def test_who_leaves_takes_nobody_s_answer_along(store: Store, broker: Broker) -> None:
    job = spec()
    store.worker("w1")
    await store.admit(job)
    looking = Whereabouts(store.redis)
    await looking.find(job.id)
    broker.freeze()
    try:
        first = asyncio.create_task(looking.find(job.id))
        others = [asyncio.create_task(looking.find(job.id)) for _ in range(9)]
        for _ in range(SENT_AFTER):  # redis-py may swallow a cancellation while it sends
            await asyncio.sleep(0)
        first.cancel()
        others[3].cancel()
        await asyncio.wait([first, others[3]])
        assert (first.cancelled(), others[3].cancelled()) == (True, True)
    finally:
        broker.thaw()
    answers = await asyncio.gather(*(task for task in others if not task.cancelled()))
    assert [found is not None and found[0] for found in answers] == ["w1"] * 8


async def test_all_hear_that_the_broker_is_away_and_the_next_look_works_again(
    store: Store, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a look of their own after one that failed: five of them would take five times as long."""
    hasty = async_client(store.url, timeout_s=0.5)
    looking, looks = Whereabouts(hasty), counted(hasty, monkeypatch)
    try:
        broker.freeze()
        try:
            answers = await asyncio.gather(*(looking.find("unknown") for _ in range(MANY)), return_exceptions=True)
        finally:
            broker.thaw()
        assert {type(answer) for answer in answers} == {BrokerDown}
        assert len(looks) == 1
        assert len({id(answer) for answer in answers}) == len(answers)
        assert await looking.find("unknown") is None
    finally:
        await hasty.aclose()
