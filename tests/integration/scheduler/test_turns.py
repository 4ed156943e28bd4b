"""What is remembered of a turn: found again, counted once, forgotten in time."""

from dataclasses import replace
from typing import Any

import pytest

from infra import keys
from scheduler.contract import Kind, Started
from scheduler.policy import misses
from scheduler.policy.chain import Chain
from scheduler.policy.misses import Cause, Seen, Turn
from scheduler.turns import WHYS_KEPT, Kept, Turns, decode_turn, encode_turn
from tests.integration.scheduler.store import Store, spec, to

pytestmark = pytest.mark.integration

SEEN = Seen(
    request="req_1",
    conversation="c1",
    kind=Kind.MAIN,
    chain=Chain("s", "t", ("a", "b"), (10, 20, 30)),
    summarised=False,
    model="m",
    asked_model="m",
    started=Started("w1", 3, 1, 0, 100, 0, engine_run="r1"),
    prompt_tokens=100,
    cached_tokens=0,
    output_tokens=20,
    prefill_ms=10,
    thought=True,
    begun_ms=1,
    ended_ms=2,
)


def kept(line: str = "l1", agent: str = "reviewer", cause: Cause = Cause.EVICTED, **changes: Any) -> Kept:
    turn = misses.turn(None, replace(SEEN, **changes))
    return Kept(line, agent, turn, slot=3, cause=cause, lost_tokens=70, lost_ms=7, why={"request": turn.request})


@pytest.fixture
def turns(store: Store) -> Turns:
    return Turns(store.redis, lifetime_s=60)


async def test_a_turn_is_found_by_its_conversation_else_by_its_line(turns: Turns) -> None:
    first, other = kept(), kept(conversation="c2", request="req_2", prompt_tokens=500)
    await turns.keep(first)
    await turns.keep(other)
    assert await turns.last("l1", "c1") == first.turn
    assert await turns.last("l1", "c2") == other.turn
    assert await turns.last("l1", "with another prefix") == other.turn
    assert await turns.last("l2", "with another prefix") is None


async def test_what_another_version_wrote_is_no_turn(turns: Turns, store: Store) -> None:
    for raw in ("", "{", "[]", "{}", '{"chain": {}}', '{"chain": {"system": "", "tools": "", "messages": 1}}'):
        store.raw.set(keys.turn("c1"), raw)
        assert await turns.last("l1", "c1") is None


async def test_an_answer_is_kept_once_however_often_it_is_told(turns: Turns) -> None:
    for _ in range(3):
        await turns.keep(kept())
    assert await turns.whys("reviewer") == [{"request": "req_1"}]
    assert await turns.read_totals() == {"evicted": {"count": 1, "tokens": 70, "ms": 7}}


async def test_an_agents_accounts_come_newest_first_and_are_few(turns: Turns) -> None:
    for number in range(WHYS_KEPT + 5):
        await turns.keep(kept(request=f"req_{number}"))
    found = [why["request"] for why in await turns.whys("reviewer")]
    assert found == [f"req_{number}" for number in reversed(range(5, WHYS_KEPT + 5))]
    assert await turns.why("req_0") == {"request": "req_0"}
    assert (await turns.why("req_x"), await turns.whys("nobody")) == (None, [])


async def test_turns_that_lost_nothing_are_no_misses(turns: Turns) -> None:
    await turns.keep(kept(cause=Cause.NONE))
    assert await turns.read_totals() == {}


async def test_all_but_the_totals_is_forgotten_in_time(turns: Turns, store: Store) -> None:
    await turns.keep(kept())
    assert store.lasting() == [keys.MISSES]


async def test_a_home_knows_its_slot_and_tokens_until_it_moves(turns: Turns, store: Store) -> None:
    store.worker("w1")
    store.worker("w2")
    job = spec(conversation="c1")
    await store.admit(job, "w1")
    await turns.keep(kept())
    home = store.raw.hgetall(keys.home("c1"))
    assert (home["worker"], home["slot"], home["tokens"]) == ("w1", "3", "120")
    assert 0 <= store.now_ms() - int(home["used_ms"]) < 10_000
    assert store.home("c1") == "w1"
    assert await store.jobs.move(job.id, "w1", to("w2"), job.level, "c1")
    await turns.keep(kept(request="req_2"))
    assert set(store.raw.hgetall(keys.home("c1"))) == {"worker", "used_ms"}
    assert store.home("c1") == "w2"


async def test_a_conversation_without_a_home_gets_none_by_ending(turns: Turns, store: Store) -> None:
    await turns.keep(kept())
    assert not store.raw.exists(keys.home("c1"))


async def test_a_home_that_is_taken_elsewhere_forgets_its_size(turns: Turns, store: Store) -> None:
    for name in ("w1", "w2"):
        store.worker(name)
    await store.admit(spec(conversation="c1"), "w1")
    await turns.keep(kept())
    await store.admit(spec(conversation="c1"), "w1")
    assert store.raw.hget(keys.home("c1"), "tokens") == "120"
    await store.admit(spec(conversation="c1"), "w2")
    assert set(store.raw.hgetall(keys.home("c1"))) == {"worker", "used_ms"}


def test_a_turn_of_the_longest_history_stays_small() -> None:
    count = 5_000
    sizes = tuple(range(0, 1_000 * (count + 1), 1_000))
    chain = Chain("s" * 16, "t" * 16, tuple(f"{number:016}" for number in range(count)), sizes)
    turn: Turn = misses.turn(None, replace(SEEN, chain=chain))
    assert len(encode_turn(turn)) < 70_000
    assert decode_turn(encode_turn(turn)) == turn
