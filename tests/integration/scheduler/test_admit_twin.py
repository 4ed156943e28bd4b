"""`lua/admit.lua` chooses as `policy/placement.py` does, whatever stands in the lines."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from infra import keys
from infra.errors import QueueFull
from scheduler.admitting import unknown
from scheduler.contract import Identity, JobSpec, Kind
from scheduler.policy.claiming import MOST_URGENT_LEVEL
from scheduler.policy.load import Ahead, Load, kept_slots, left_ms
from scheduler.policy.placement import NO_LIMIT, Candidate, Choice, choose
from tests.doubles.broker import Broker
from tests.integration.scheduler.store import Store, packed, spec

pytestmark = pytest.mark.integration

QUEUE_LIMIT = 40
MARGIN_MS = 1000
URGENT_SHARE = 0.25
WORKERS = ("w1", "w2", "w3")
whole = st.integers(0, 30_000)
# Claimed long ago or only just: a prefill that goes by between the two looks would decide now and then.
Run = tuple[int, int, int, int]
running = st.lists(
    st.tuples(whole, st.integers(0, 5000), st.sampled_from([-600_000, 600_000]), st.integers(0, 9)), max_size=5
)
lines = st.lists(st.tuples(st.integers(0, 9), st.sampled_from("ab"), whole), max_size=QUEUE_LIMIT)
offers = st.builds(
    Candidate,
    worker=st.just(""),
    slots=st.integers(1, 9),
    limit=st.integers(0, 6) | st.just(NO_LIMIT),
    is_home=st.just(False),
    prefill_ms=st.floats(0, 20_000),
    displaced_ms=st.floats(0, 20_000),
    token_ms=st.floats(0.05, 20),
    new_tokens=st.integers(1, 5000),
    expected_ms=st.floats(0, 60_000),
)
books = st.tuples(offers, running, lines, st.integers(0, 6), st.booleans())
At = list[tuple[Candidate, list[Run], list[tuple[int, str, int]], int, bool]]


class Cluster:
    """Workers with books of a test's own making, and what the policy sees of them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now_ms = store.now_ms()
        self.jobs = 0

    def lay(
        self, worker: str, runs: list[Run], line: list[tuple[int, str, int]], homes: int = 0, *, urgent: bool = False
    ) -> None:
        self.store.worker(worker)
        pipe = self.store.raw.pipeline()
        for expected_ms, tokens, ago_ms, level in runs:
            self.jobs += 1
            runs_since = {
                "expected_ms": expected_ms,
                "new_tokens": tokens,
                "claimed_ms": self.now_ms - ago_ms,
                "level": level,
            }
            pipe.hset(keys.job(f"j{self.jobs}"), mapping=runs_since)
            pipe.hset(keys.running(worker), f"j{self.jobs}", "someone")
        for level, agent, expected_ms in line:
            self.jobs += 1
            record: dict[str, str | int] = {"level": level, "key": "k", "agent": agent, "expected_ms": expected_ms}
            pipe.hset(keys.job(f"j{self.jobs}"), mapping=record)
            pipe.zadd(keys.line(worker), {f"j{self.jobs}": level * keys.LEVEL_WEIGHT + self.jobs})
        for number in range(homes):
            pipe.zadd(keys.homes(worker), {f"home-{number}": self.now_ms})
        if urgent:
            pipe.set(keys.urgent(worker), 1)
        pipe.execute()


def seen(one: Candidate, runs: list[Run], line: list[tuple[int, str, int]], homes: int, *, urgent: bool) -> Load:
    left = tuple(left_ms(expected, tokens, max(0, ago), one.token_ms) for expected, tokens, ago, _ in runs)
    kept = kept_slots(URGENT_SHARE, one.slots, sum(level <= MOST_URGENT_LEVEL for *_, level in runs)) if urgent else 0
    ordered = sorted(line, key=lambda job: job[0])
    return Load(left, tuple(Ahead(level, f"k:{agent}", ms) for level, agent, ms in ordered), len(line), homes, kept)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # to shrink on a real broker takes minutes
    suppress_health_check=list(HealthCheck),
)
@given(
    at=st.lists(books, min_size=1, max_size=3),
    level=st.integers(0, 9),
    agent=st.sampled_from("abc"),
    home=st.booleans(),
)
def test_the_store_chooses_as_the_policy_does(
    at: At,
    level: int,
    agent: str,
    home: bool,
    broker: Broker,
    runner: asyncio.Runner,
) -> None:
    broker.flush()
    runner.run(_compare(broker, at, level, agent, home))


async def _compare(
    broker: Broker,
    at: At,
    level: int,
    agent: str,
    home: bool,
) -> None:
    store = Store(broker.url, broker.client, QUEUE_LIMIT)
    try:
        cluster, found, loads = Cluster(store), list[Candidate](), dict[str, Load]()
        for name, (offer, runs, line, homes, urgent) in zip(WORKERS, at, strict=False):
            limit, is_home = (NO_LIMIT, True) if home and not found else (offer.limit, False)
            one = Candidate(
                name, offer.slots, limit, is_home, offer.prefill_ms, offer.displaced_ms, offer.token_ms,
                offer.new_tokens, offer.expected_ms,
            )  # fmt: skip
            cluster.lay(name, runs, line, homes, urgent=urgent)
            found.append(one)
            loads[name] = seen(one, runs, line, homes, urgent=urgent)
        who = Identity(key_name="k", agent=agent, session=None, conversation="c", kind=Kind.MAIN, identified=True)
        job = JobSpec(id="new", identity=who, level=level, wait_limit_ms=1000, request=packed())
        await _agree(store, job, found, choose(found, loads, unknown(job), MARGIN_MS, QUEUE_LIMIT))
    finally:
        await store.close()


async def _agree(store: Store, job: JobSpec, found: list[Candidate], choice: Choice | None) -> None:
    if choice is None:
        with pytest.raises(QueueFull):
            await store.jobs.admit(job, found, 1)
        return
    one = found[choice.index]
    admission = await store.jobs.admit(job, found, 1)
    assert admission.worker == one.worker
    assert admission.cost_ms == pytest.approx(choice.costs[choice.index], abs=1)
    record = store.raw.hmget(keys.job("new"), ["new_tokens", "expected_ms", "key", "agent"])
    assert record == [str(one.new_tokens), repr(one.expected_ms), "k", job.identity.agent]


async def test_several_api_processes_at_once_never_give_a_worker_more_than_its_share(broker: Broker) -> None:
    broker.flush()
    store = Store(broker.url, broker.client)
    others = [Store(broker.url, broker.client) for _ in range(3)]
    for name in WORKERS:
        store.worker(name)
    found = [Candidate(name, 64, limit=4, expected_ms=1000) for name in WORKERS]
    taken = await asyncio.gather(*(api.jobs.admit(spec(), found, 1) for api in [store, *others] for _ in range(3)))
    assert Counter(one.worker for one in taken) == dict.fromkeys(WORKERS, 4)
    for api in [store, *others]:
        await api.close()


async def test_the_prefill_of_a_running_answer_goes_by(broker: Broker) -> None:
    """Both run 30 s, of which 20 s are prefill; at w2 that is over."""
    broker.flush()
    store = Store(broker.url, broker.client)
    cluster = Cluster(store)
    cluster.lay("w1", [(30_000, 2_000, 1_000, 5)], [])
    cluster.lay("w2", [(30_000, 2_000, 25_000, 5)], [])
    found = [Candidate(name, 1, token_ms=10.0) for name in ("w1", "w2")]
    assert (await store.jobs.admit(spec(), found, 1)).worker == "w2"
    await store.close()


@pytest.mark.parametrize(("level", "goes_to"), [(2, "w1"), (3, "w2")])
async def test_a_slot_that_is_kept_for_the_urgent_levels_is_free_to_these_alone(
    level: int, goes_to: str, broker: Broker
) -> None:
    broker.flush()
    store = Store(broker.url, broker.client)
    cluster = Cluster(store)
    cluster.lay("w1", [(30_000, 0, 0, 5)] * 3, [], urgent=True)
    cluster.lay("w2", [(4_000, 0, 0, 5)] * 4, [])
    found = [Candidate(name, 4) for name in ("w1", "w2")]
    assert (await store.jobs.admit(spec(level), found, 1)).worker == goes_to
    await store.close()
