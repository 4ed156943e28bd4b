"""The ledger of promises: who is refused is told a time of its own, and finds room when it comes."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from infra import keys
from scheduler.contract import Identity, JobSpec, Kind
from scheduler.policy.admission import LONGEST_RETRY_S
from scheduler.promises import LEVEL_MS, MOST_AGENTS, SMOOTHED_STARTS, Promises, Room
from tests.integration.scheduler.store import Store, packed

pytestmark = pytest.mark.integration

BUSY = Room(wait_ms=30_000, usual_ms=2000, slots={"w1": 4})  # a start each half second
LIMIT_MS = 20_000
QUEUE_LIMIT = 64


def caller(name: str, *, agent: str = "agent", level: int = 5, limit_ms: int = LIMIT_MS) -> JobSpec:
    """A request with a body of its own; asked again it is another job with the same body."""
    who = Identity(key_name="k", agent=agent, session=None, conversation=name, kind=Kind.MAIN, identified=True)
    return JobSpec(id=name, identity=who, level=level, wait_limit_ms=limit_ms, request=packed(name))


@pytest.fixture
def promises(store: Store) -> Promises:
    """The worker's slots are all at work, and its line has room for fifty."""
    load(store, waiting=14)
    return Promises(store.redis, QUEUE_LIMIT)


def load(store: Store, *, waiting: int, running: int = 4) -> None:
    """So many jobs wait and run at the worker, whatever did before."""
    store.raw.delete(keys.line("w1"), keys.running("w1"))
    if waiting:
        store.raw.zadd(keys.line("w1"), {f"waiting-{number}": number for number in range(waiting)})
    for number in range(running):
        store.raw.hset(keys.running("w1"), f"running-{number}", "w1-1")


def make_due(store: Store, job: JobSpec) -> None:
    """The time that its promise is due has come."""
    places = keys.promises("places", "m")
    [member] = [one for one in store.raw.zrange(places, 0, -1) if one.startswith(job.request.digest.hex())]
    store.raw.zadd(places, {member: job.level * LEVEL_MS + store.now_ms()})


def held(store: Store) -> int:
    return int(store.raw.zcard(keys.promises("places", "m")))


async def test_who_need_not_wait_too_long_comes_in(promises: Promises, store: Store) -> None:
    verdict = await promises.ask(caller("a"), replace(BUSY, wait_ms=LIMIT_MS))
    assert (verdict.comes_in, verdict.wait_ms, verdict.kept) == (True, LIMIT_MS, False)
    assert held(store) == 0


async def test_who_would_wait_too_long_is_told_when_it_would_not(promises: Promises) -> None:
    verdict = await promises.ask(caller("a"), BUSY)
    assert (verdict.comes_in, verdict.full) == (False, False)
    assert verdict.retry_after_s == 16  # 30 s until a start, of which it may wait 14 with some to spare


async def test_a_hundred_refused_ones_are_told_times_of_their_own(promises: Promises, store: Store) -> None:
    verdicts = [await promises.ask(caller(f"caller-{n}", agent=f"a{n}"), BUSY) for n in range(100)]
    told = [verdict.retry_after_s for verdict in verdicts]
    assert told == sorted(told)
    assert max(Counter(second for second in told if second < LONGEST_RETRY_S).values()) == 2
    assert told[-1] == LONGEST_RETRY_S
    assert held(store) == 100
    assert store.lasting() == []


async def test_processes_that_refuse_at_once_promise_no_place_twice(store: Store) -> None:
    load(store, waiting=14)
    several = [Promises(store.redis, QUEUE_LIMIT) for _ in range(4)]
    asked = [several[n % 4].ask(caller(f"caller-{n}", agent=f"a{n}"), BUSY) for n in range(80)]
    told = Counter(verdict.retry_after_s for verdict in await asyncio.gather(*asked))
    assert all(told[second] == 2 for second in range(17, 56))


async def test_who_asks_again_too_early_keeps_its_place(promises: Promises, store: Store) -> None:
    first = await promises.ask(caller("first"), BUSY)
    for number in range(20):
        await promises.ask(caller(f"caller-{number}", agent=f"a{number}"), BUSY)
    assert await promises.ask(caller("first"), BUSY) == first
    assert held(store) == 21


async def test_a_promise_is_kept_before_newcomers_come_in(promises: Promises, store: Store) -> None:
    for name in ("first", "second"):
        assert not (await promises.ask(caller(name, agent=name), BUSY)).comes_in
    drained = replace(BUSY, wait_ms=LIMIT_MS - 400)
    assert not (await promises.ask(caller("newcomer", agent="new"), drained)).comes_in
    verdict = await promises.ask(caller("first", agent="first"), drained)
    assert (verdict.comes_in, verdict.kept) == (True, True)
    assert held(store) == 2


async def test_a_place_that_is_due_needs_room_for_one_and_a_newcomer_room_behind_all(
    promises: Promises, store: Store
) -> None:
    short = replace(BUSY, wait_ms=0)
    load(store, waiting=QUEUE_LIMIT)
    for name in ("first", "second"):
        assert (await promises.ask(caller(name, agent=name), short)).full
    load(store, waiting=QUEUE_LIMIT - 1)
    assert (await promises.ask(caller("newcomer", agent="new"), short)).full
    assert (await promises.ask(caller("second", agent="second"), short)).full
    make_due(store, caller("second"))
    assert (await promises.ask(caller("second", agent="second"), short)).kept


async def test_what_was_promised_to_others_since_takes_nothing_from_a_place_that_is_due(
    promises: Promises, store: Store
) -> None:
    at_limit = replace(BUSY, wait_ms=LIMIT_MS)
    for number in range(100):
        await promises.ask(caller(f"caller-{number}", agent=f"a{number % 7}"), BUSY)
    assert not (await promises.ask(caller("caller-80", agent="a3"), at_limit)).comes_in
    make_due(store, caller("caller-80"))
    assert not (await promises.ask(caller("caller-80", agent="a3"), BUSY)).comes_in  # it would wait in vain
    verdict = await promises.ask(caller("caller-80", agent="a3"), at_limit)
    assert (verdict.comes_in, verdict.wait_ms, verdict.kept) == (True, LIMIT_MS, True)


async def test_a_place_that_is_due_leaves_room_to_more_urgent_ones_that_are(promises: Promises, store: Store) -> None:
    load(store, waiting=QUEUE_LIMIT)
    for level in (3, 5):
        job = caller(f"of-{level}", level=level)
        await promises.ask(job, BUSY)
        make_due(store, job)
    load(store, waiting=QUEUE_LIMIT - 1)
    short = replace(BUSY, wait_ms=0)
    assert (await promises.ask(caller("of-5"), short)).full
    assert (await promises.ask(caller("of-3", level=3), short)).kept
    assert (await promises.ask(caller("of-5"), short)).kept


async def test_nobody_is_told_a_time_before_those_that_it_waits_behind(promises: Promises, store: Store) -> None:
    """Even when things look better now than when these were told theirs."""
    told = [await promises.ask(caller(f"caller-{n}", agent=f"a{n}"), BUSY) for n in range(10)]
    better = replace(BUSY, wait_ms=LIMIT_MS - 100)
    assert (await promises.ask(caller("newcomer", agent="new"), better)).retry_after_s >= told[-1].retry_after_s
    [*_, last] = store.raw.zrange(keys.promises("places", "m"), 0, -1)
    assert last.startswith(caller("newcomer").request.digest.hex())


async def test_while_more_urgent_ones_bring_more_than_can_be_done_others_are_told_the_longest_hint(
    promises: Promises,
) -> None:
    before = await promises.ask(caller("early", agent="early", level=7), BUSY)
    for number in range(2 * SMOOTHED_STARTS):
        await promises.ask(caller(f"urgent-{number}", level=3, agent=f"a{number}"), BUSY)
    after = await promises.ask(caller("late", agent="late", level=7), BUSY)
    assert before.retry_after_s < after.retry_after_s == LONGEST_RETRY_S
    assert (await promises.ask(caller("other", agent="other", level=2), BUSY)).retry_after_s == before.retry_after_s


async def test_with_a_slot_that_is_free_now_nobody_is_refused(promises: Promises, store: Store) -> None:
    """Whatever the lines looked like a moment ago."""
    for number in range(3):
        await promises.ask(caller(f"caller-{number}"), BUSY)
    load(store, waiting=0, running=3)
    assert (await promises.ask(caller("lucky"), BUSY)).comes_in


async def test_a_promise_nobody_comes_for_lapses(promises: Promises, store: Store) -> None:
    for number in range(3):
        await promises.ask(caller(f"caller-{number}"), BUSY)
    lapses = keys.promises("lapses", "m")
    for member in store.raw.zrange(lapses, 0, -1):
        store.raw.zadd(lapses, {member: store.now_ms() - 1})
    assert (await promises.ask(caller("newcomer"), replace(BUSY, wait_ms=LIMIT_MS))).comes_in
    assert held(store) == 0
    assert store.raw.hgetall(keys.promises("counts", "m")) == {}


async def test_promises_to_less_urgent_callers_hold_up_nobody(promises: Promises, store: Store) -> None:
    load(store, waiting=QUEUE_LIMIT - 1)
    for number in range(40):
        await promises.ask(caller(f"caller-{number}", level=7), BUSY)
    at_limit = replace(BUSY, wait_ms=LIMIT_MS)
    assert (await promises.ask(caller("urgent", level=3), at_limit)).comes_in
    assert not (await promises.ask(caller("idle", level=9), at_limit)).comes_in


async def test_one_that_asks_for_much_does_not_hold_up_one_that_asks_for_little(promises: Promises) -> None:
    told = [await promises.ask(caller(f"much-{n}", agent="much"), BUSY) for n in range(60)]
    little = await promises.ask(caller("little", agent="little"), BUSY)
    assert little.retry_after_s == told[1].retry_after_s < told[30].retry_after_s


async def test_one_of_many_that_take_turns_is_told_how_long_that_takes(promises: Promises) -> None:
    """Its ten in the line are served one in each round of all who ask."""
    room = replace(BUSY, own=10, agents=8)
    verdict = await promises.ask(caller("a"), room)
    assert verdict.wait_ms == 10 * 8 * 2000 / 4
    assert verdict.retry_after_s == 26


async def test_too_many_agents_are_served_in_the_order_in_which_they_came(promises: Promises) -> None:
    for number in range(MOST_AGENTS + 2):
        last = await promises.ask(caller(f"caller-{number}", agent=f"a{number}"), BUSY)
    again = await promises.ask(caller("another", agent="another"), BUSY)
    assert again.retry_after_s >= last.retry_after_s
