"""The ledger of promises: who is refused is told a time of its own, and finds room when it comes."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from infra import keys
from scheduler.contract import Identity, JobSpec, Kind
from scheduler.policy.admission import LONGEST_RETRY_S
from scheduler.promises import MOST_AGENTS, Promises, Room
from tests.integration.scheduler.store import Store, packed

pytestmark = pytest.mark.integration

FULL = Room(wait_ms=30_000, slots=4, usual_ms=2000, jobs=50, free=False)  # a start each half second
LIMIT_MS = 20_000


def caller(name: str, *, agent: str = "agent", level: int = 5, limit_ms: int = LIMIT_MS) -> JobSpec:
    """A request with a body of its own; asked again it is another job with the same body."""
    who = Identity(key_name="k", agent=agent, session=None, conversation=name, kind=Kind.MAIN, identified=True)
    return JobSpec(id=name, identity=who, level=level, wait_limit_ms=limit_ms, request=packed(name))


@pytest.fixture
def promises(store: Store) -> Promises:
    return Promises(store.redis)


def held(store: Store) -> int:
    return int(store.raw.zcard(keys.promises("places", "m")))


async def test_who_need_not_wait_too_long_comes_in(promises: Promises, store: Store) -> None:
    verdict = await promises.ask(caller("a"), replace(FULL, wait_ms=LIMIT_MS))
    assert (verdict.comes_in, verdict.wait_ms, verdict.kept) == (True, LIMIT_MS, False)
    assert held(store) == 0


async def test_who_would_wait_too_long_is_told_when_it_would_not(promises: Promises) -> None:
    verdict = await promises.ask(caller("a"), FULL)
    assert (verdict.comes_in, verdict.full) == (False, False)
    assert verdict.retry_after_s == 16  # 30 s until a start, of which it may wait 14 with some to spare


async def test_a_hundred_refused_ones_are_told_times_of_their_own(promises: Promises, store: Store) -> None:
    verdicts = [await promises.ask(caller(f"caller-{n}", agent=f"a{n}"), FULL) for n in range(100)]
    told = [verdict.retry_after_s for verdict in verdicts]
    assert told == sorted(told)
    assert max(Counter(second for second in told if second < LONGEST_RETRY_S).values()) == 2
    assert told[-1] == LONGEST_RETRY_S
    assert held(store) == 100
    assert store.lasting() == []


async def test_processes_that_refuse_at_once_promise_no_place_twice(store: Store) -> None:
    several = [Promises(store.redis) for _ in range(4)]
    asked = [several[n % 4].ask(caller(f"caller-{n}", agent=f"a{n}"), FULL) for n in range(80)]
    told = Counter(verdict.retry_after_s for verdict in await asyncio.gather(*asked))
    assert all(told[second] == 2 for second in range(17, 56))


async def test_who_asks_again_too_early_keeps_its_place(promises: Promises, store: Store) -> None:
    first = await promises.ask(caller("first"), FULL)
    for number in range(20):
        await promises.ask(caller(f"caller-{number}", agent=f"a{number}"), FULL)
    assert await promises.ask(caller("first"), FULL) == first
    assert held(store) == 21


async def test_a_promise_is_kept_before_newcomers_come_in(promises: Promises, store: Store) -> None:
    for name in ("first", "second"):
        assert not (await promises.ask(caller(name, agent=name), FULL)).comes_in
    drained = replace(FULL, wait_ms=LIMIT_MS - 400)
    assert not (await promises.ask(caller("newcomer", agent="new"), drained)).comes_in
    verdict = await promises.ask(caller("first", agent="first"), drained)
    assert (verdict.comes_in, verdict.kept) == (True, True)
    assert held(store) == 2


async def test_a_kept_promise_needs_room_for_one_and_a_newcomer_room_behind_all(promises: Promises) -> None:
    short = replace(FULL, wait_ms=0, jobs=0)
    for name in ("first", "second"):
        assert (await promises.ask(caller(name, agent=name), short)).full
    one = replace(short, jobs=1)
    assert (await promises.ask(caller("newcomer", agent="new"), one)).full
    assert (await promises.ask(caller("second", agent="second"), one)).comes_in


async def test_with_a_free_slot_nobody_is_refused(promises: Promises) -> None:
    for number in range(3):
        await promises.ask(caller(f"caller-{number}"), FULL)
    assert (await promises.ask(caller("lucky"), replace(FULL, jobs=0, free=True))).comes_in


async def test_a_promise_nobody_comes_for_lapses(promises: Promises, store: Store) -> None:
    for number in range(3):
        await promises.ask(caller(f"caller-{number}"), FULL)
    lapses = keys.promises("lapses", "m")
    for member in store.raw.zrange(lapses, 0, -1):
        store.raw.zadd(lapses, {member: store.now_ms() - 1})
    assert (await promises.ask(caller("newcomer"), replace(FULL, wait_ms=LIMIT_MS))).comes_in
    assert held(store) == 0
    assert store.raw.hgetall(keys.promises("counts", "m")) == {}


async def test_promises_to_less_urgent_callers_hold_up_nobody(promises: Promises) -> None:
    for number in range(40):
        await promises.ask(caller(f"caller-{number}", level=7), FULL)
    at_limit = replace(FULL, wait_ms=LIMIT_MS, jobs=1)
    assert (await promises.ask(caller("urgent", level=3), at_limit)).comes_in
    assert not (await promises.ask(caller("idle", level=9), at_limit)).comes_in


async def test_one_that_asks_for_much_does_not_hold_up_one_that_asks_for_little(promises: Promises) -> None:
    told = [await promises.ask(caller(f"much-{n}", agent="much"), FULL) for n in range(60)]
    little = await promises.ask(caller("little", agent="little"), FULL)
    assert little.retry_after_s == told[1].retry_after_s < told[30].retry_after_s


async def test_too_many_agents_are_served_in_the_order_in_which_they_came(promises: Promises) -> None:
    for number in range(MOST_AGENTS + 2):
        last = await promises.ask(caller(f"caller-{number}", agent=f"a{number}"), FULL)
    again = await promises.ask(caller("another", agent="another"), FULL)
    assert again.retry_after_s >= last.retry_after_s
