"""The books of warm-ups: one process at a time, and what is done stays done."""

import pytest

from infra import keys
from scheduler.warmups import Warmups
from tests.integration.scheduler.store import Store

pytestmark = pytest.mark.integration


async def test_one_process_at_a_time_sees_to_an_engine(store: Store) -> None:
    one, other = Warmups(store.redis), Warmups(store.redis)
    assert await one.take("w1:1")
    assert not await other.take("w1:1")
    assert await other.take("w2:1")
    await other.give_back("w1:1")
    assert not await other.take("w1:1"), "only its owner gives it back"
    await one.renew("w1:1")
    assert store.raw.pttl(keys.lock("warm:w1:1")) > 0, "a process that dies leaves no lock for ever"
    await one.give_back("w1:1")
    assert await other.take("w1:1")
    assert store.lasting() == []


async def test_what_is_done_and_what_failed_is_known_to_every_process(store: Store) -> None:
    await Warmups(store.redis).done("w1:1", "a")
    await Warmups(store.redis).failed("w1:1", "b", 2)
    other = Warmups(store.redis)
    assert await other.failures("w1:1") == {"a": None, "b": 2}
    assert await other.failures("w1:2") == {}
    assert store.lasting() == []
