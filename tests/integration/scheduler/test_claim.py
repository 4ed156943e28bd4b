"""Claiming: the best job of the line, once."""

import random
import threading
from collections import Counter

import pytest

from infra import keys
from scheduler import claims
from scheduler.claims import SlotKept
from scheduler.contract import Kind
from scheduler.packing import unpack
from scheduler.policy.claiming import pair_name
from tests.integration.scheduler.store import Store, Worker, request, spec

pytestmark = pytest.mark.integration


def claim_all(worker: Worker) -> list[str]:
    ids = []
    while (job := worker.claims.claim()) is not None:
        ids.append(job.id)
    return ids


async def test_a_claimed_job_carries_everything_and_runs(store: Store) -> None:
    worker = store.worker()
    job = spec(2, agent="me", kind=Kind.SUBAGENT, conversation="c")
    await store.admit(job)
    claimed = worker.claims.claim()
    assert claimed is not None
    assert (claimed.id, claimed.attempt, claimed.level) == (job.id, 1, 2)
    assert (claimed.agent, claimed.conversation, claimed.kind) == ("me", "c", Kind.SUBAGENT)
    assert unpack(claimed.body) == request()
    assert claimed.queue_ms >= 0
    assert (claimed.traceparent, claimed.engine_trace, claimed.waited_ms) == ("", "", claimed.queue_ms)
    assert store.running() == {job.id: worker.incarnation}
    assert store.state(job.id) == "running"
    assert store.lasting() == []


async def test_the_order_is_level_then_arrival(store: Store) -> None:
    worker = store.worker()
    jobs = [
        spec(level, agent=f"agent-{number}") for number, level in enumerate(random.Random(7).choices(range(10), k=40))
    ]
    for job in jobs:
        await store.admit(job)
    expected = sorted(range(40), key=lambda number: (jobs[number].level, number))
    assert claim_all(worker) == [jobs[number].id for number in expected]


async def test_inside_one_agent_main_goes_before_subagent_before_side(store: Store) -> None:
    worker = store.worker()
    kinds = [Kind.SIDE, Kind.SUBAGENT, Kind.MAIN]
    jobs = {kind: spec(agent="one", kind=kind) for kind in kinds}
    for kind in kinds:
        await store.admit(jobs[kind])
    assert claim_all(worker) == [jobs[kind].id for kind in (Kind.MAIN, Kind.SUBAGENT, Kind.SIDE)]


async def test_the_kind_never_counts_across_levels(store: Store) -> None:
    worker = store.worker()
    side = spec(4, agent="one", kind=Kind.SIDE)
    main = spec(5, agent="one", kind=Kind.MAIN)
    await store.admit(side)
    await store.admit(main)
    assert claim_all(worker) == [side.id, main.id]


async def test_the_kind_never_counts_across_agents(store: Store) -> None:
    worker = store.worker()
    side = spec(agent="one", kind=Kind.SIDE)
    other = spec(agent="two", kind=Kind.MAIN)
    await store.admit(side)
    await store.admit(other)
    assert claim_all(worker) == [side.id, other.id]


async def test_a_main_job_takes_the_turn_of_its_agents_side_job_and_nobody_elses(store: Store) -> None:
    worker = store.worker()
    side = spec(agent="one", kind=Kind.SIDE)
    between = spec(agent="two", kind=Kind.SIDE)
    main = spec(agent="one", kind=Kind.MAIN)
    for job in (side, between, main):
        await store.admit(job)
    assert claim_all(worker) == [main.id, side.id, between.id]


async def test_a_late_job_is_dropped(store: Store) -> None:
    worker = store.worker()
    late, good = spec(0), spec(5)
    await store.admit(late)
    await store.admit(good)
    store.raw.hset(keys.job(late.id), "deadline_ms", 1)
    assert claim_all(worker) == [good.id]
    assert store.line() == []


async def test_a_job_whose_record_is_gone_is_dropped(store: Store) -> None:
    worker = store.worker()
    gone, good = spec(0), spec(5)
    await store.admit(gone)
    await store.admit(good)
    store.raw.delete(keys.job(gone.id))
    assert claim_all(worker) == [good.id]


async def test_a_job_that_runs_elsewhere_is_dropped_from_the_line(store: Store) -> None:
    worker = store.worker()
    job = spec()
    await store.admit(job)
    assert claim_all(worker) == [job.id]
    store.raw.zadd(keys.line("w1"), {job.id: 5})
    assert claim_all(worker) == []


async def test_claims_at_once_never_give_one_job_twice(store: Store) -> None:
    worker = store.worker()
    store.jobs = store.jobs_with(120)
    for number in range(120):
        await store.admit(spec(number % 10, agent=f"agent-{number % 7}", kind=list(Kind)[number % 3]))
    claimed: list[str] = []
    threads = [threading.Thread(target=lambda: claimed.extend(claim_all(worker))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claimed) == 120
    assert set(Counter(claimed).values()) == {1}
    assert store.line() == []


async def test_a_claim_that_is_sent_twice_takes_one_job(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As redis-py does when the broker was too slow with its answer: both copies are carried out."""
    worker = store.worker()
    first, second = spec(0, agent="one"), spec(5, agent="two")
    for job in (first, second):
        await store.admit(job)
    script = worker.claims._claim
    monkeypatch.setattr(worker.claims, "_claim", lambda *sent: (script(*sent), script(*sent))[1])
    claimed = worker.claims.claim()
    assert claimed is not None
    assert (claimed.id, claimed.attempt, claimed.level) == (first.id, 1, 0)
    assert unpack(claimed.body) == request()
    assert (list(store.running()), store.line()) == ([first.id], [second.id])
    assert claim_all(worker) == [second.id]


async def test_a_claim_whose_answer_was_lost_is_refunded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "UNHELD_S", 0)
    worker = store.worker()
    held, lost = spec(0), spec(5)
    for job in (held, lost):
        await store.admit(job)
        store.raw.hset(keys.job(job.id), "expected_ms", 8000)
        assert worker.claims.claim() is not None
    assert worker.beat(held.id) == {held.id: "running"}
    for whom in ("key:k", "agent:k:agent"):
        # A little has faded since.
        assert float(store.raw.hget(keys.attained(whom), "ms")) == pytest.approx(8000, rel=0.01)
    assert store.raw.hget(keys.job(lost.id), "claimed_ms") is None


async def test_whose_time_to_come_back_is_over_keeps_no_slot_and_takes_none_from_those_that_do(store: Store) -> None:
    worker = store.worker()
    for _ in range(3):
        await store.admit(spec(agent="here"))
    for _ in range(2):
        assert worker.claims.claim(3) is not None
    soon, over = (pair_name(5, "k", agent) for agent in ("soon", "over"))
    store.raw.zadd(keys.back("w1"), {soon: store.now_ms() + 60_000, over: store.now_ms() - 1})
    with pytest.raises(SlotKept):
        worker.claims.claim(3)
    store.raw.zrem(keys.back("w1"), soon)
    assert worker.claims.claim(3) is not None
