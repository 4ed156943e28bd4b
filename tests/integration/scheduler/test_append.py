"""Writing a job's stream: fenced, repeatable, with an end."""

import pytest

from infra import keys
from scheduler.contract import ClaimedJob, Failed, TextDelta, encode_deltas
from tests.integration.scheduler.store import Store, Worker, spec

pytestmark = pytest.mark.integration

HELLO = encode_deltas([TextDelta("hello")])
FAILED = encode_deltas([Failed("internal", "no")])


async def running(store: Store, worker: Worker) -> ClaimedJob:
    await store.admit(spec())
    claimed = worker.claims.claim()
    assert claimed is not None
    return claimed


async def test_an_entry_stands_under_attempt_and_sequence(store: Store) -> None:
    worker = store.worker()
    job = await running(store, worker)
    assert worker.append(job, 1, HELLO, "")
    assert worker.append(job, 2, HELLO, "")
    assert store.written(job.id) == [("1-1", [TextDelta("hello")]), ("1-2", [TextDelta("hello")])]
    assert store.lasting() == []


async def test_repeating_a_write_changes_nothing(store: Store) -> None:
    worker = store.worker()
    job = await running(store, worker)
    assert worker.append(job, 1, HELLO, "")
    assert worker.append(job, 1, HELLO, "")
    assert len(store.written(job.id)) == 1


async def test_the_last_write_ends_the_job_and_may_be_repeated(store: Store) -> None:
    worker = store.worker()
    job = await running(store, worker)
    assert worker.append(job, 1, HELLO, "done")
    assert worker.append(job, 1, HELLO, "done")
    assert store.state(job.id) == "done"
    assert store.running() == {}
    assert not store.raw.hexists(keys.job(job.id), "body")
    assert len(store.written(job.id)) == 1
    assert store.lasting() == []


async def test_nothing_follows_the_end(store: Store) -> None:
    worker = store.worker()
    job = await running(store, worker)
    assert worker.append(job, 1, HELLO, "done")
    assert not worker.append(job, 2, HELLO, "")
    assert not worker.append(job, 2, FAILED, "failed")
    assert len(store.written(job.id)) == 1


async def test_an_older_attempt_is_refused(store: Store) -> None:
    worker = store.worker()
    job = await running(store, worker)
    store.raw.hincrby(keys.job(job.id), "attempt", 1)
    assert not worker.append(job, 1, HELLO, "")
    assert not worker.append(job, 1, FAILED, "failed")
    assert store.written(job.id) == []
    assert store.state(job.id) == "running"


async def test_a_cancelled_job_is_refused_and_its_last_writer_removes_it(store: Store) -> None:
    worker = store.worker()
    job = await running(store, worker)
    assert worker.append(job, 1, HELLO, "")
    assert await store.jobs.cancel(job.id, "w1", job.level) == "running"
    assert not worker.append(job, 2, HELLO, "")
    assert store.running() == {}
    assert not store.raw.exists(keys.job(job.id), keys.stream(job.id))


async def test_a_job_that_is_gone_is_refused_and_runs_no_more(store: Store) -> None:
    worker = store.worker()
    job = await running(store, worker)
    store.raw.delete(keys.job(job.id))
    assert not worker.append(job, 1, HELLO, "")
    assert store.running() == {}
    assert not store.raw.exists(keys.stream(job.id), keys.job(job.id))
