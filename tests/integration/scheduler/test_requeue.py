"""Another attempt at a running job: the books afterwards, and what the lost attempt may still do."""

from collections.abc import Awaitable, Callable

import pytest

from infra import keys
from scheduler.attempts import LIVES_ON_MS, MOST_ATTEMPTS, WAITS_AT_LEAST_MS
from scheduler.contract import ClaimedJob, Finished, StopReason, TextDelta, encode_deltas
from tests.integration.scheduler.store import Store, Worker, sent_twice, spec, to

pytestmark = pytest.mark.integration

HELLO = encode_deltas([TextDelta("hello")])
WORLD = encode_deltas([TextDelta(" world")])
DONE = encode_deltas([Finished(StopReason.END_TURN, None, 1, 0, 1, 1, 1, "h", 1)])


def claimed_by(worker: Worker) -> ClaimedJob:
    claimed = worker.claims.claim()
    assert claimed is not None
    return claimed


async def begun(store: Store, worker: Worker) -> ClaimedJob:
    """A running job of which a word was told."""
    await store.admit(spec(), worker.name)
    claimed = claimed_by(worker)
    store.raw.delete(keys.level_list(worker.name, claimed.level))  # its ticket was taken
    assert worker.append(claimed, 1, HELLO, "")
    return claimed


async def given_up(store: Store, worker: Worker, job: ClaimedJob) -> bool:
    return worker.claims.give_up(job)


async def swept(store: Store, worker: Worker, job: ClaimedJob) -> bool:
    """As recovery does, once the lease is gone."""
    store.raw.delete(keys.lease(worker.name))
    return await store.jobs.requeue(job.id, worker.name, worker.incarnation)


def reborn(store: Store, name: str = "w1") -> Worker:
    store.raw.delete(keys.lease(name))
    return store.worker(name)


BOTH = pytest.mark.parametrize("lose", [given_up, swept])
Lose = Callable[[Store, Worker, ClaimedJob], Awaitable[bool]]


@BOTH
async def test_the_next_attempt_finds_what_was_told_and_the_lost_one_is_fenced(store: Store, lose: Lose) -> None:
    worker = store.worker()
    lost = await begun(store, worker)
    assert await lose(store, worker, lost)
    assert (store.state(lost.id), store.running(), store.line()) == ("queued", {}, [lost.id])
    assert not worker.append(lost, 2, WORLD, "")
    assert not worker.append(lost, 3, DONE, "done")
    worker = reborn(store)
    again = claimed_by(worker)
    assert (again.id, again.attempt, again.body) == (lost.id, 2, lost.body)
    assert worker.claims.past(again) == [TextDelta("hello")]
    assert not worker.append(lost, 4, WORLD, "")
    assert worker.append(again, 1, DONE, "done")
    assert [entry for entry, _ in store.written(lost.id)] == ["1-1", "2-1"]
    assert store.lasting() == []


async def test_a_first_attempt_has_no_past(store: Store) -> None:
    worker = store.worker()
    assert worker.claims.past(await begun(store, worker)) == []


@BOTH
async def test_it_waits_at_its_old_place(store: Store, lose: Lose) -> None:
    worker = store.worker()
    lost = await begun(store, worker)
    later, urgent = spec(), spec(1)
    for job in (later, urgent):
        await store.admit(job)
    assert await lose(store, worker, lost)
    assert store.line() == [urgent.id, lost.id, later.id]


@BOTH
async def test_record_and_stream_outlive_its_wait(store: Store, lose: Lose) -> None:
    """Else the next attempt would tell everything once more."""
    worker = store.worker()
    lost = await begun(store, worker)
    store.raw.pexpire(keys.stream(lost.id), 5_000)
    assert await lose(store, worker, lost)
    waits_ms = int(store.raw.hget(keys.job(lost.id), "deadline_ms")) - store.now_ms()
    assert WAITS_AT_LEAST_MS - 10_000 < waits_ms <= WAITS_AT_LEAST_MS
    for name in (keys.job(lost.id), keys.stream(lost.id)):
        assert store.raw.pttl(name) > waits_ms
        assert store.raw.pttl(name) <= WAITS_AT_LEAST_MS + LIVES_ON_MS


async def test_the_heart_of_one_that_was_taken_for_dead_does_not_shorten_that_life(store: Store) -> None:
    worker = store.worker()
    job = await begun(store, worker)
    assert await swept(store, worker, job)
    before = store.raw.pttl(keys.job(job.id))
    assert worker.beat(job.id) == {job.id: "queued"}
    for name in (keys.job(job.id), keys.stream(job.id)):
        assert store.raw.pttl(name) > before - 30_000


async def test_a_job_of_a_living_incarnation_is_not_taken_from_it(store: Store) -> None:
    worker = store.worker()
    job = await begun(store, worker)
    assert not await store.jobs.requeue(job.id, "w1", worker.incarnation)
    assert (store.state(job.id), store.line()) == ("running", [])
    assert worker.append(job, 2, WORLD, "")


async def test_a_job_that_another_incarnation_runs_is_left_alone(store: Store) -> None:
    worker = store.worker("w1", "old")
    store.raw.delete(keys.lease("w1"))
    new = store.worker("w1", "new")
    job = await begun(store, new)
    assert not worker.claims.give_up(job)
    assert not await store.jobs.requeue(job.id, "w1", "old")
    assert store.running() == {job.id: "new"}


@BOTH
async def test_after_the_last_attempt_there_is_no_other(store: Store, lose: Lose) -> None:
    worker = store.worker()
    job = await begun(store, worker)
    for attempt in range(2, MOST_ATTEMPTS + 1):
        assert await lose(store, worker, job)
        worker = reborn(store)
        job = claimed_by(worker)
        assert job.attempt == attempt
    assert not await lose(store, worker, job)
    assert (store.state(job.id), store.line()) == ("running", [])


@BOTH
async def test_a_command_that_is_sent_twice_is_told_as_the_first_time(
    store: Store, lose: Lose, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = store.worker()
    job = await begun(store, worker)
    monkeypatch.setattr(store.jobs, "_requeue", sent_twice(store.jobs._requeue))
    requeue = worker.claims._requeue

    def twice(*arguments: object) -> object:
        requeue(*arguments)  # type: ignore[arg-type]
        return requeue(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(worker.claims, "_requeue", twice)
    assert await lose(store, worker, job)
    assert (store.line(), store.state(job.id)) == ([job.id], "queued")
    assert claimed_by(reborn(store)).attempt == 2


async def test_a_late_copy_of_the_command_takes_nothing_from_the_next_attempt(store: Store) -> None:
    worker = store.worker()
    job = await begun(store, worker)
    assert worker.claims.give_up(job)
    other = store.worker("w2")
    assert await store.jobs.move(job.id, "w1", to("w2"), job.level, job.conversation)
    again = claimed_by(other)
    assert not worker.claims.give_up(job)
    assert (store.running("w2"), store.line("w1"), store.line("w2")) == ({job.id: other.incarnation}, [], [])
    assert other.append(again, 1, DONE, "done")


@pytest.mark.parametrize("final", ["done", "failed"])
async def test_an_answer_that_has_ended_is_not_made_again(store: Store, final: str) -> None:
    worker = store.worker()
    job = await begun(store, worker)
    assert worker.append(job, 2, DONE, final)
    assert not worker.claims.give_up(job)
    assert store.state(job.id) == final


async def test_an_answer_whose_client_has_left_is_not_made_again(store: Store) -> None:
    worker = store.worker()
    job = await begun(store, worker)
    await store.jobs.cancel(job.id, "w1", job.level)
    assert not worker.claims.give_up(job)
    assert store.line() == []


async def test_a_client_that_leaves_while_its_answer_waits_again_leaves_nothing_behind(store: Store) -> None:
    worker = store.worker()
    job = await begun(store, worker)
    assert worker.claims.give_up(job)
    assert await store.jobs.cancel(job.id, "w1", job.level) == "queued"
    assert not store.raw.exists(keys.job(job.id), keys.stream(job.id))
    assert (store.line(), store.running()) == ([], {})


async def test_an_attempt_that_the_house_itself_cut_does_not_count(store: Store) -> None:
    worker = store.worker()
    job = await begun(store, worker)
    for attempt in range(2, MOST_ATTEMPTS + 3):
        assert worker.claims.give_up(job, spared=True)
        assert worker.claims.give_up(job, spared=True)  # a retried command counts once
        job = claimed_by(worker)
        assert job.attempt == attempt
    for _ in range(MOST_ATTEMPTS - 1):
        assert worker.claims.give_up(job)
        job = claimed_by(worker)
    assert not worker.claims.give_up(job)


@BOTH
async def test_each_attempt_has_an_id_of_its_own_in_the_trace_of_its_request(store: Store, lose: Lose) -> None:
    worker, trace = store.worker(), "a" * 32
    await store.admit(spec().model_copy(update={"traceparent": f"00-{trace}-{'b' * 16}-01"}), worker.name)
    first = claimed_by(worker)
    assert await lose(store, worker, first)
    store.raw.hincrby(keys.job(first.id), "arrival_ms", -5000)  # its answer had taken that long
    second = claimed_by(reborn(store))
    assert {first.traceparent, second.traceparent} == {f"00-{trace}-{'b' * 16}-01"}
    assert first.span_id != second.span_id
    assert second.engine_trace == f"00-{trace}-{second.span_id}-01"
    assert second.queue_ms >= 5000
    assert second.waited_ms < 5000, "this attempt has waited only since the one before was lost"
