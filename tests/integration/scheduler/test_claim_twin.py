"""The claim in the store takes what the pure policy says, charges it once, and settles it once."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis import Redis

from infra import keys
from infra.redis_client import sync_client
from scheduler import scripts
from scheduler.claims import LONGEST_HOLD_MS, Claims, SlotKept
from scheduler.contract import ClaimedJob, Kind
from scheduler.policy.claiming import (
    Cached,
    Choice,
    Line,
    Occupied,
    Returning,
    Rules,
    Service,
    Waiting,
    agent_name,
    choose,
    order,
    pair_name,
)
from scheduler.policy.keeping import return_hold_ms
from scheduler.policy.lengths import Samples
from tests.doubles.broker import Broker
from tests.unit.scheduler.policy.lines import NOW_MS, RULES, cached_lines, crowded_lines, line, lines, services, waiting

pytestmark = pytest.mark.integration
TOKEN_MS = 0.5
WORKER, INCARNATION, API = "w1", "w1-now", "api"
BROKER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)


class Books:
    """A worker's claims on a store whose clock stands at a time of the test's own."""

    def __init__(self, broker: Broker) -> None:
        self.raw: Any = broker.client
        self.redis: Redis = sync_client(broker.url)
        self.claims = Claims(self.redis, self.redis, WORKER, INCARNATION, RULES)
        self.at(NOW_MS)

    def at(self, now_ms: int) -> None:
        clock = f"{{'{now_ms // 1000}', '{now_ms % 1000}000'}}"
        for name in ("claim", "settle"):
            text = scripts.text(name).replace("redis.call('TIME')", clock)
            assert clock in text
            setattr(self.claims, f"_{name}", self.redis.register_script(text))

    def lay(self, made: Line) -> None:
        """Write a line into the empty store."""
        self.raw.flushdb()
        pipe = self.raw.pipeline(transaction=False)
        pipe.xadd(keys.wake(API), {"job": ""})
        for job in made.waiting:
            pipe.hset(keys.job(job.id), mapping=record(job))
            pipe.zadd(keys.line(WORKER), {job.id: job.level * keys.LEVEL_WEIGHT + job.arrival})
        for number, one in enumerate(made.running):
            fields = {"state": "running", "level": one.level, "key": one.key, "agent": one.agent, "claim": "other",
                      "conversation": one.conversation}  # fmt: skip
            pipe.hset(keys.job(f"running-{number}"), mapping=fields)
            pipe.hset(keys.running(WORKER), f"running-{number}", INCARNATION)
        for back in made.returning:
            pipe.zadd(keys.back(WORKER), {pair_name(back.level, back.key, back.agent): back.until_ms})
        for whom, had in attained(made).items():
            pipe.hset(keys.attained(whom), mapping={"ms": had.ms, "at_ms": had.at_ms})
        if made.urgent_until_ms:
            pipe.set(keys.urgent(WORKER), 1, px=round(made.urgent_until_ms - made.now_ms))
        pipe.execute()

    def claim(self, slots: int, cached: Sequence[Cached] = ()) -> Choice:
        try:
            job = self.claims.claim(slots, 3, cached, TOKEN_MS)
        except SlotKept as kept:
            return Choice(None, kept.held_ms)
        return Choice(job.id if job else None)

    def service(self, whom: str) -> Service:
        found = self.raw.hmget(keys.attained(whom), "ms", "at_ms")
        return Service(float(found[0] or 0), float(found[1] or 0))

    def samples(self, whom: str) -> Samples:
        found = self.raw.hgetall(keys.lengths(whom))
        return Samples(**{name: float(value) for name, value in found.items()})


def record(job: Waiting) -> dict[str, str | int | float]:
    return {
        "state": "queued", "attempt": 0, "worker": WORKER, "level": job.level, "api": API, "key": job.key,
        "agent": job.agent, "kind": job.kind.value, "conversation": job.conversation, "arrival": job.arrival,
        "arrival_ms": round(job.arrival_ms), "deadline_ms": NOW_MS, "reserve": 0, "body": "",
        "new_tokens": round(job.prefill_ms / TOKEN_MS), "expected_ms": job.expected_ms,
        "agent_weight": job.agent_weight, "key_weight": job.key_weight,
    }  # fmt: skip


def attained(made: Line) -> dict[str, Service]:
    agents = {f"agent:{name}": had for name, had in made.agents.items()}
    return agents | {f"key:{name}": had for name, had in made.keys.items()}


@pytest.fixture
def books(broker: Broker) -> Iterator[Books]:
    made = Books(broker)
    yield made
    made.redis.close()


TWICE = [Returning(level, "k", "b", NOW_MS + 3000) for level in (4, 5)]
ONE_IN_TWO_LEVELS = Line(NOW_MS, 4, [waiting(0, agent="a")], [Occupied(5, "k", "a")] * 2, TWICE)


@BROKER
@given(made=lines() | crowded_lines() | cached_lines())
@example(made=ONE_IN_TWO_LEVELS)
def test_any_line_is_claimed_as_the_policy_says(books: Books, made: Line) -> None:
    books.lay(made)
    chosen, claimed = choose(made, RULES), books.claim(made.slots, made.cached)
    assert claimed.job == chosen.job
    assert claimed.held_ms == min(LONGEST_HOLD_MS, math.ceil(chosen.held_ms))
    assert books.raw.get(keys.holding(WORKER)) == ("3" if claimed.held_ms else None)
    assert books.raw.pttl(keys.holding(WORKER)) <= claimed.held_ms
    job = next((job for job in made.waiting if job.id == claimed.job), None)
    for whom, had in attained(made).items():
        ours = job is not None and whom in (f"key:{job.key}", f"agent:{agent_name(job.key, job.agent)}")
        expected = had.charged(job.expected_ms, NOW_MS, RULES.half_life_ms) if job and ours else had
        assert books.service(whom).ms == pytest.approx(expected.ms)
        assert books.service(whom).at_ms == expected.at_ms


@BROKER
@given(made=lines(most=12))
def test_a_whole_line_is_claimed_in_the_order_that_is_told_ahead(books: Books, made: Line) -> None:
    made = Line(NOW_MS, 1, made.waiting, keys=made.keys, agents=made.agents)
    books.lay(made)
    taken = [books.claim(1).job for _ in made.waiting]
    assert taken == [job.id for job in order(made, RULES)]
    assert books.claim(1) == Choice(None)


def test_a_claim_that_is_sent_twice_is_charged_once(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    books.lay(line(waiting(0, agent="a"), waiting(1, agent="b")))
    script = books.claims._claim
    monkeypatch.setattr(books.claims, "_claim", lambda *sent: (script(*sent), script(*sent))[1])
    job = books.claims.claim()
    assert job is not None
    assert (job.key, job.expected_ms, job.claimed_ms) == ("k", 1000.0, NOW_MS)
    assert (books.service("agent:k:a"), books.service("key:k")) == (Service(1000, NOW_MS), Service(1000, NOW_MS))
    assert books.raw.hget(keys.job(job.id), "claimed_ms") == str(NOW_MS)


def test_jobs_of_an_earlier_process_take_no_slot(books: Books) -> None:
    books.lay(Line(NOW_MS, 4, [waiting(0)], urgent_until_ms=NOW_MS + 60_000))
    for number in range(3):
        books.raw.hset(keys.running(WORKER), f"dead-{number}", "w1-before")
        books.raw.hset(keys.job(f"dead-{number}"), mapping={"level": 5, "agent": "x", "key": "k"})
    assert books.claim(4).job == "job-0"


def test_a_record_of_before_this_was_reckoned_is_claimed_all_the_same(books: Books) -> None:
    books.lay(line(waiting(0)))
    books.raw.hdel(keys.job("job-0"), "key", "expected_ms", "agent_weight", "key_weight")
    job = books.claims.claim()
    assert job is not None
    assert (job.key, job.expected_ms) == ("", 0.0)


# --- settling -----------------------------------------------------------------------------------------------------


def claimed(books: Books, kind: Kind = Kind.MAIN) -> ClaimedJob:
    job = books.claims.claim()
    assert job is not None
    return job


@BROKER
@given(had=services, used_ms=st.integers(0, 200_000), later_ms=st.integers(0, 400_000), twice=st.booleans())
def test_any_answer_is_settled_as_the_policy_says(
    books: Books, had: Service, used_ms: int, later_ms: int, *, twice: bool
) -> None:
    made = Line(NOW_MS, 1, [waiting(0, agent="a", expected_ms=7000)], agents={"k:a": had})
    books.at(NOW_MS)
    books.lay(made)
    job = claimed(books)
    books.at(NOW_MS + later_ms)
    for _ in range(2 if twice else 1):
        books.claims.settle(job, used_ms, None, in_tool_call=False)
    charged = had.charged(7000, NOW_MS, RULES.half_life_ms)
    expected = charged.settled(used_ms, Service(7000, NOW_MS), NOW_MS + later_ms, RULES.half_life_ms)
    assert books.service("agent:k:a").ms == pytest.approx(expected.ms, abs=1e-6)
    assert books.service("key:k").ms == pytest.approx(used_ms, abs=1e-6)
    assert books.service("key:k").at_ms == NOW_MS + later_ms
    assert not books.raw.exists(keys.lengths("all"))


@settings(BROKER, max_examples=30)
@given(lengths=st.lists(st.integers(0, 10_000), min_size=1, max_size=150))
def test_lengths_are_learnt_as_the_policy_says(books: Books, lengths: list[int]) -> None:
    books.lay(line())
    seen = Samples()
    for number, tokens in enumerate(lengths):
        job = ClaimedJob(f"job-{number}", 1, 5, "a", "c", Kind.SIDE, 0, False, b"", "k")
        books.claims.settle(job, 0, tokens, in_tool_call=False)
        books.claims.settle(job, 0, tokens, in_tool_call=False)
        seen = seen.learnt(tokens)
    for whom in ("side:k:a", "all"):
        learnt = books.samples(whom)
        assert (learnt.n, learnt.mean, learnt.m2) == pytest.approx((seen.n, seen.mean, seen.m2))


def test_an_agent_in_a_tool_call_is_awaited_as_long_as_it_usually_takes(books: Books) -> None:
    books.lay(line(waiting(0, agent="a")))
    books.claims.settle(claimed(books), 10, 5, in_tool_call=True)
    assert books.raw.zrange(keys.back(WORKER), 0, -1, withscores=True) == [("5:k:a", NOW_MS + RULES.return_hold_ms)]
    came_ms, next_ms = NOW_MS + 400, NOW_MS + 900
    books.raw.hset(keys.job("job-1"), mapping=record(waiting(1, agent="a")) | {"arrival_ms": came_ms})
    books.raw.hset(keys.job("job-1"), "deadline_ms", next_ms)
    books.raw.zadd(keys.line(WORKER), {"job-1": 1})
    books.at(next_ms)
    job = claimed(books)
    assert books.raw.zcard(keys.back(WORKER)) == 0
    books.claims.settle(job, 10, 5, in_tool_call=True)
    hold_ms = return_hold_ms(400, RULES)
    assert books.raw.zrange(keys.back(WORKER), 0, -1, withscores=True) == [("5:k:a", next_ms + hold_ms)]


def test_nothing_that_is_remembered_lives_for_ever(books: Books) -> None:
    books.lay(Line(NOW_MS, 2, [waiting(0, agent="a")]))
    books.claims.settle(claimed(books), 10, 5, in_tool_call=True)
    written = ("attained", "back", "lengths", "settled", "holding")
    names = [name for name in books.raw.scan_iter() if name.split(":")[1] in written]
    assert len(names) == 6
    assert all(books.raw.pttl(name) > 0 for name in names)


def test_a_held_slot_is_claimed_by_whom_it_was_kept_for(books: Books) -> None:
    back = Returning(5, "k", "single", NOW_MS + 3000)
    made = Line(NOW_MS, 2, [waiting(0, agent="many"), waiting(1, agent="many")], returning=[back])
    books.lay(made)
    assert books.claim(2).job == "job-0"
    assert books.claim(2) == Choice(None, 3000)
    books.raw.hset(keys.job("job-2"), mapping=record(waiting(2, agent="single")))
    books.raw.zadd(keys.line(WORKER), {"job-2": 9})
    assert books.claim(2).job == "job-2"


def test_rules_are_those_of_the_settings(broker: Broker) -> None:
    """Each reaches the script in its place."""
    redis = sync_client(broker.url)
    sent: list[object] = []
    claims = Claims(redis, redis, WORKER, INCARNATION, Rules(11, 22, 0.33, 44))
    claims._claim = lambda _, arguments: sent.extend(arguments)  # type: ignore[assignment]
    assert claims.claim(7, 2) is None
    redis.close()
    assert sent[7:12] == [7, 2, 11, 22, 0.33]
