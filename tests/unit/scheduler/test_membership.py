"""What an API process believes of the broker between two reads."""

import asyncio
import math
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from infra.errors import BrokerDown
from scheduler import membership as module
from scheduler.contract import ClusterView
from scheduler.membership import Membership

pytestmark = pytest.mark.unit
WAIT_S = 10


class Read:
    """Answers once, then never again; `failed` is set after the first read that failed."""

    def __init__(self) -> None:
        self.answered = False
        self.failed = asyncio.Event()

    async def __call__(self) -> ClusterView:
        if self.answered:
            self.failed.set()
            raise BrokerDown("away")
        self.answered = True
        return ClusterView(now_ms=1)


@pytest.mark.parametrize(("patience_s", "fresh"), [(600.0, True), (0.0, False)])
async def test_one_read_that_fails_is_no_broker_that_is_away(
    monkeypatch: pytest.MonkeyPatch, patience_s: float, fresh: bool
) -> None:
    monkeypatch.setattr(module, "MISSED_S", patience_s)
    monkeypatch.setattr(module, "REFRESH_S", 0)
    made, read = Membership(cast(Redis, None)), Read()
    monkeypatch.setattr(made, "read", cast(Any, read))
    reading = asyncio.create_task(made.run())
    async with asyncio.timeout(WAIT_S):
        await read.failed.wait()
        await asyncio.sleep(0)
    assert made.fresh is fresh
    reading.cancel()
    await asyncio.wait([reading])


async def test_a_broker_that_never_answered_is_away() -> None:
    assert not Membership(cast(Redis, None)).fresh


@pytest.mark.parametrize("answered", [False, True], ids=["it answers", "it is away"])
async def test_the_first_look_is_over_once_the_broker_has_answered_or_failed(
    monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    made, read = Membership(cast(Redis, None)), Read()
    read.answered = answered
    monkeypatch.setattr(made, "read", cast(Any, read))
    looking = asyncio.create_task(made.first_look(600))
    await asyncio.sleep(0)
    assert not looking.done()
    reading = asyncio.create_task(made.run())
    async with asyncio.timeout(WAIT_S):
        await looking
    assert made.fresh is not answered
    reading.cancel()
    await asyncio.wait([reading])


async def test_a_broker_that_does_not_answer_is_not_waited_for_longer_than_the_limit() -> None:
    async with asyncio.timeout(WAIT_S):
        await Membership(cast(Redis, None)).first_look(0.01)


async def test_many_who_would_be_refused_share_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "APART_S", 600)
    made, reads = Membership(cast(Redis, None)), 0

    async def read() -> ClusterView:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0)
        return ClusterView(now_ms=reads)

    made._read_s = -math.inf
    monkeypatch.setattr(made, "read", read)
    await asyncio.gather(*(made.look_again() for _ in range(9)))
    assert (reads, made.view.now_ms, made.fresh) == (1, 1, True)
