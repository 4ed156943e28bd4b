"""Giving up, moving and burying a job, and the books that must agree afterwards."""

import pytest

from infra import keys
from scheduler.contract import Failed, TextDelta, encode_deltas
from tests.integration.scheduler.store import Store, candidates, sent_twice, spec, to

pytestmark = pytest.mark.integration

LOST = Failed("worker_lost", "gone")
HELLO = encode_deltas([TextDelta("hello")])


# --- cancel -------------------------------------------------------------------------------------------------------


async def test_cancelling_a_queued_job_takes_it_and_one_ticket_of_its_level(store: Store) -> None:
    store.worker()
    jobs = [spec(5), spec(5), spec(3)]
    for job in jobs:
        await store.admit(job)
    assert await store.jobs.cancel(jobs[0].id, "w1", 5) == "queued"
    assert store.line() == [jobs[2].id, jobs[1].id]
    assert store.tickets() == [0, 0, 0, 1, 0, 1, 0, 0, 0, 0]
    assert not store.raw.exists(keys.job(jobs[0].id), keys.stream(jobs[0].id))


async def test_cancelling_twice_takes_one_ticket(store: Store) -> None:
    store.worker()
    first, second = spec(5), spec(5)
    await store.admit(first)
    await store.admit(second)
    assert await store.jobs.cancel(first.id, "w1", 5) == "queued"
    assert await store.jobs.cancel(first.id, "w1", 5) == "over"
    assert sum(store.tickets()) == 1


async def test_cancelling_a_running_job_tells_its_worker(store: Store) -> None:
    worker = store.worker()
    worker.claims.cancellations()
    job = spec()
    await store.admit(job)
    assert worker.claims.claim() is not None
    assert await store.jobs.cancel(job.id, "w1", job.level) == "running"
    assert worker.claims.cancellations() == [job.id]
    assert worker.beat(job.id) == {job.id: "cancelled"}
    assert store.lasting() == []


async def test_a_running_job_is_not_withdrawn(store: Store) -> None:
    worker = store.worker()
    job = spec()
    await store.admit(job)
    assert worker.claims.claim() is not None
    assert await store.jobs.cancel(job.id, "w1", job.level, only_queued=True) == "running"
    assert store.state(job.id) == "running"


async def test_cancelling_a_job_that_moved_finds_it(store: Store) -> None:
    store.worker("w1")
    store.worker("w2")
    job = spec(4, conversation="c")
    await store.admit(job, "w1")
    assert await store.jobs.move(job.id, "w1", to("w2"), 4, "c")
    store.ticket("w2", 4)
    assert await store.jobs.cancel(job.id, "w1", 4) == "queued"
    assert (store.line("w1"), store.line("w2")) == ([], [])
    assert sum(store.tickets("w1")) + sum(store.tickets("w2")) == 0


async def test_cancelling_a_job_that_is_over_changes_nothing(store: Store) -> None:
    worker = store.worker()
    job = spec()
    await store.admit(job)
    claimed = worker.claims.claim()
    assert claimed is not None
    worker.append(claimed, 1, HELLO, "done")
    assert await store.jobs.cancel(job.id, "w1", job.level) == "over"
    assert store.state(job.id) == "done"
    assert await store.jobs.cancel("never-was", "w1", 5) == "over"


# --- move ---------------------------------------------------------------------------------------------------------


async def test_a_moved_job_keeps_its_place_and_takes_its_home_along(store: Store) -> None:
    store.worker("w1")
    store.worker("w2")
    early = spec(5, conversation="c")
    await store.admit(early, "w1")
    later = spec(5)
    await store.admit(later, "w2")
    assert await store.jobs.move(early.id, "w1", to("w2"), 5, "c")
    assert store.line("w2") == [early.id, later.id]
    assert store.line("w1") == []
    assert sum(store.tickets("w1")) == 0
    assert store.home("c") == "w2"
    assert (store.raw.zscore(keys.homes("w1"), "c"), store.raw.zscore(keys.homes("w2"), "c") is None) == (None, False)
    assert store.lasting() == []


async def test_moving_again_changes_nothing(store: Store) -> None:
    store.worker("w1")
    store.worker("w2")
    job = spec(5, conversation="c")
    await store.admit(job, "w1")
    assert await store.jobs.move(job.id, "w1", to("w2"), 5, "c")
    assert not await store.jobs.move(job.id, "w1", to("w2"), 5, "c")
    assert store.line("w2") == [job.id]


async def test_a_move_whose_answer_is_lost_is_told_as_made(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is sent again, and the job still needs its ticket at the new worker."""
    store.worker("w1")
    store.worker("w2")
    job = spec(conversation="c")
    await store.admit(job, "w1")
    monkeypatch.setattr(store.jobs, "_move", sent_twice(store.jobs._move))
    assert await store.jobs.move(job.id, "w1", to("w2"), 5, "c")
    assert (store.line("w2"), sum(store.tickets("w1"))) == ([job.id], 0)


async def test_a_running_job_does_not_move(store: Store) -> None:
    worker = store.worker("w1")
    job = spec(conversation="c")
    await store.admit(job)
    assert worker.claims.claim() is not None
    assert not await store.jobs.move(job.id, "w1", to("w2"), 5, "c")
    assert store.line("w2") == []


# --- bury ---------------------------------------------------------------------------------------------------------


async def test_a_buried_job_ends_with_the_given_words_and_fences_the_dead(store: Store) -> None:
    worker = store.worker()
    job = spec()
    await store.admit(job)
    claimed = worker.claims.claim()
    assert claimed is not None
    assert worker.append(claimed, 7, HELLO, "")
    store.raw.delete(keys.lease("w1"))
    assert await store.jobs.bury(job.id, "w1", worker.incarnation, LOST)
    assert not await store.jobs.bury(job.id, "w1", worker.incarnation, LOST)
    assert not worker.append(claimed, 8, HELLO, "")
    assert store.written(job.id) == [("1-7", [TextDelta("hello")]), ("2-0", [LOST])]
    assert (store.state(job.id), store.running()) == ("failed", {})
    assert store.lasting() == []


async def test_a_job_of_a_living_incarnation_is_never_buried(store: Store) -> None:
    worker = store.worker()
    job = spec()
    await store.admit(job)
    assert worker.claims.claim() is not None
    assert not await store.jobs.bury(job.id, "w1", worker.incarnation, LOST)
    assert store.state(job.id) == "running"


async def test_a_job_of_the_next_incarnation_is_not_buried_with_the_last_one(store: Store) -> None:
    old = store.worker("w1", "old")
    store.raw.delete(keys.lease("w1"))
    worker = store.worker("w1", "new")
    job = spec()
    await store.jobs.admit(job, candidates("w1"), 1)
    assert worker.claims.claim() is not None
    assert not await store.jobs.bury(job.id, "w1", old.incarnation, LOST)
    assert store.state(job.id) == "running"


async def test_a_cancelled_job_of_a_dead_worker_is_only_forgotten(store: Store) -> None:
    worker = store.worker()
    job = spec()
    await store.admit(job)
    assert worker.claims.claim() is not None
    await store.jobs.cancel(job.id, "w1", job.level)
    store.raw.delete(keys.lease("w1"))
    assert not await store.jobs.bury(job.id, "w1", worker.incarnation, LOST)
    assert (store.running(), store.written(job.id)) == ({}, [])
