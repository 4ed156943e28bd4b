"""A queued job that one more client waits for: it rises in its line, and its wait limit grows."""

from typing import Any

import pytest

from infra import keys
from scheduler.queue import Tickets
from scheduler.raising import Raising
from tests.integration.scheduler.store import Store, sent_twice, spec

pytestmark = pytest.mark.integration


class Published:
    """Tickets as they would be published, laid at once."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def publish(self, _job: str, _agent: str, worker: str, level: int) -> None:
        self._store.ticket(worker, level)


def raising(store: Store) -> Raising:
    tickets: Any = Published(store)
    kept: Tickets = tickets
    return Raising(store.redis, kept)


async def test_a_raised_job_goes_before_what_is_less_urgent_and_takes_its_ticket_along(store: Store) -> None:
    worker = store.worker()
    before, job = spec(4, agent="before"), spec(9, agent="raised")
    for one in (before, job):
        await store.admit(one)
    assert await raising(store).lift(job.id, "raised", "w1", 9, 1, 0)
    assert store.line() == [job.id, before.id]
    assert store.tickets() == [0, 1, 0, 0, 1, 0, 0, 0, 0, 0]
    assert store.raw.hget(keys.job(job.id), "level") == "1"
    claimed = worker.claims.claim()
    assert claimed is not None
    assert (claimed.id, claimed.level) == (job.id, 1)


async def test_a_job_never_sinks_and_its_limit_never_shrinks(store: Store) -> None:
    store.worker()
    job = spec(5, wait_limit_ms=30_000)
    await store.admit(job)
    before = store.raw.hget(keys.job(job.id), "deadline_ms")
    assert await raising(store).lift(job.id, "agent", "w1", 5, 7, 10_000)
    assert store.raw.hmget(keys.job(job.id), "level", "deadline_ms") == ["5", before]
    assert store.tickets()[5] == 1


async def test_the_limit_grows_and_the_record_lives_as_long(store: Store) -> None:
    store.worker()
    job = spec(5, wait_limit_ms=1_000)
    await store.admit(job)
    now_ms = store.now_ms()
    assert await raising(store).lift(job.id, "agent", "w1", 5, 5, 600_000)
    assert now_ms + 600_000 <= int(store.raw.hget(keys.job(job.id), "deadline_ms")) <= store.now_ms() + 600_000
    assert store.raw.pttl(keys.job(job.id)) > 600_000


async def test_raised_twice_it_takes_one_ticket_along(store: Store) -> None:
    store.worker()
    jobs = [spec(9), spec(9)]
    for job in jobs:
        await store.admit(job)
    for _ in range(2):
        assert await raising(store).lift(jobs[0].id, "agent", "w1", 9, 3, 0)
    assert [store.tickets()[level] for level in (3, 9)] == [1, 1]


async def test_a_rise_whose_answer_is_lost_has_its_ticket(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.worker()
    job = spec(9)
    await store.admit(job)
    raises = raising(store)
    monkeypatch.setattr(raises, "_raise", sent_twice(raises._raise))
    assert await raises.lift(job.id, "agent", "w1", 9, 3, 0)
    assert [store.tickets()[level] for level in (3, 9)] == [1, 0]


async def test_of_two_rises_that_pass_each_other_on_the_way_the_most_urgent_holds(store: Store) -> None:
    """The later one, which comes first, has been told of a level at which the job does not stand yet."""
    store.worker()
    job = spec(9)
    await store.admit(job)
    assert await raising(store).lift(job.id, "agent", "w1", 5, 1, 0)
    assert await raising(store).lift(job.id, "agent", "w1", 9, 5, 0)
    assert store.raw.hget(keys.job(job.id), "level") == "1"
    assert store.tickets() == [0, 1, 0, 0, 0, 0, 0, 0, 0, 0]


async def test_a_job_that_was_moved_is_raised_where_it_waits(store: Store) -> None:
    store.worker("w2")
    job = spec(9)
    await store.admit(job, "w2")
    assert await raising(store).lift(job.id, "agent", "w1", 9, 0, 0)
    assert store.tickets("w2")[0] == 1
    assert store.tickets("w1") == [0] * 10


async def test_a_job_raised_to_an_urgent_level_has_its_slots_and_a_waiting_worker_hears_of_it(store: Store) -> None:
    store.worker()
    job = spec(9)
    await store.admit(job)
    store.raw.set(keys.holding("w1"), 1)
    heard = store.raw.xlen(keys.control("w1"))
    await raising(store).lift(job.id, "agent", "w1", 9, 2, 0)
    assert store.raw.exists(keys.urgent("w1"))
    assert store.raw.xlen(keys.control("w1")) == heard + 1


async def test_a_job_that_runs_or_is_unknown_does_not_wait(store: Store) -> None:
    worker = store.worker()
    job = spec(9)
    await store.admit(job)
    assert await raising(store).waits(job.id, "w1", 9)
    assert worker.claims.claim() is not None
    assert not await raising(store).lift(job.id, "agent", "w1", 9, 0, 0)
    assert not await raising(store).waits("unknown", "w1", 9)
    assert store.tickets()[0] == 0
