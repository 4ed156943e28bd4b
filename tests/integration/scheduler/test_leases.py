"""Leases and locks: one name, one living incarnation; only the owner gives back."""

import pytest

from infra import keys
from scheduler import claims, scripts
from scheduler.contract import Failed, TextDelta, encode_deltas
from scheduler.draining import Draining
from tests.integration.scheduler.store import API, Store, spec

pytestmark = pytest.mark.integration


async def test_of_two_incarnations_the_living_one_keeps_the_name(store: Store) -> None:
    first = store.worker("w1", "one")
    second = store.worker("w1", "two", alive=False)
    assert second.beat() is None
    assert first.beat() == {}
    store.raw.delete(keys.lease("w1"))
    assert second.beat() == {}
    assert first.beat() is None


async def test_leaving_gives_back_only_ones_own_lease(store: Store) -> None:
    first = store.worker("w1", "one")
    store.raw.delete(keys.lease("w1"))
    store.worker("w1", "two")
    first.claims.leave(told=True)
    assert store.raw.exists(keys.lease("w1")) == 1


async def test_a_worker_that_left_is_still_known_so_that_its_line_is_looked_after(store: Store) -> None:
    worker = store.worker("w1")
    await store.admit(spec())
    worker.claims.leave(told=True)
    assert not store.raw.exists(keys.lease("w1"))
    assert store.raw.zrange(keys.WORKERS, 0, -1) == ["w1"]


async def test_a_beat_renews_the_jobs_that_run(store: Store) -> None:
    worker = store.worker()
    job = spec()
    await store.admit(job)
    assert worker.claims.claim() is not None
    store.raw.pexpire(keys.job(job.id), 1000)
    assert worker.beat(job.id) == {job.id: "running"}
    assert store.raw.pttl(keys.job(job.id)) > 60_000


async def test_a_beat_tells_what_became_of_jobs_that_are_gone(store: Store) -> None:
    worker = store.worker()
    assert worker.beat("never-was") == {"never-was": ""}


async def test_a_job_claimed_here_that_no_thread_holds_goes_back_to_its_place_in_the_line(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to its claim was lost on the way: nobody began with it."""
    monkeypatch.setattr(claims, "UNHELD_S", 0)
    worker = store.worker()
    held, lost, later = spec(0), spec(5), spec(5)
    for job in (held, lost):
        await store.admit(job)
        assert worker.claims.claim() is not None
    await store.admit(later)
    assert worker.beat(held.id) == {held.id: "running"}
    assert store.running() == {held.id: worker.incarnation}
    assert (store.line(), store.state(lost.id)) == ([lost.id, later.id], "queued")
    assert store.lasting() == []
    again = worker.claims.claim()
    assert again is not None
    assert (again.id, again.attempt) == (lost.id, 2)


async def test_a_job_that_nobody_holds_any_more_but_that_was_begun_is_given_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "UNHELD_S", 0)
    worker = store.worker()
    job = spec()
    await store.admit(job)
    claimed = worker.claims.claim()
    assert claimed is not None
    worker.append(claimed, 1, encode_deltas([TextDelta("begun")]), "")
    assert worker.beat() == {}
    assert store.running() == {job.id: "nobody"}
    assert await store.jobs.bury(job.id, "w1", "nobody", Failed("worker_lost", "gone"))
    assert (store.line(), store.state(job.id)) == ([], "failed")


async def test_a_job_that_nobody_holds_and_nobody_waits_for_leaves_the_books(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "UNHELD_S", 0)
    worker = store.worker()
    gone, cancelled = spec(), spec()
    for job in (gone, cancelled):
        await store.admit(job)
        assert worker.claims.claim() is not None
    store.raw.delete(keys.job(gone.id))
    await store.jobs.cancel(cancelled.id, "w1", cancelled.level)
    assert worker.beat() == {}
    assert (store.running(), store.line()) == ({}, [])


async def test_a_job_between_its_claim_and_its_thread_is_not_given_up(store: Store) -> None:
    worker = store.worker()
    job = spec()
    await store.admit(job)
    assert worker.claims.claim() is not None
    for _ in range(3):
        assert worker.beat() == {}
    assert store.running() == {job.id: worker.incarnation}


async def test_the_jobs_of_a_dead_api_are_given_up(store: Store) -> None:
    worker = store.worker()
    runs, waits = spec(0), spec(5)
    for job in (runs, waits):
        await store.admit(job)
    assert worker.claims.claim() is not None
    store.raw.delete(keys.wake(API))
    assert worker.beat(runs.id) == {runs.id: "cancelled"}
    assert worker.claims.claim() is None
    assert (store.line(), store.state(waits.id)) == ([], None)


async def test_an_api_that_says_so_is_alive_though_it_asked_for_nothing_lately(store: Store) -> None:
    worker = store.worker()
    job = spec()
    await store.admit(job)
    store.raw.delete(keys.wake(API))
    await store.jobs.announce()
    claimed = worker.claims.claim()
    assert claimed is not None
    assert claimed.id == job.id
    assert store.lasting() == []


async def test_a_lock_is_given_back_only_by_its_owner(store: Store) -> None:
    unlock = store.raw.register_script(scripts.text("unlock"))
    store.raw.set(keys.lock("x"), "me", px=1000)
    assert unlock([keys.lock("x")], ["other"]) == 0
    assert store.raw.get(keys.lock("x")) == "me"
    assert unlock([keys.lock("x")], ["me"]) == 1
    assert unlock([keys.lock("x")], ["me"]) == 0


async def test_a_beat_tells_how_long_answers_may_go_on_while_the_worker_is_to_be_drained(store: Store) -> None:
    draining, worker = Draining(store.redis), store.worker("w1")

    def told() -> int | None:
        worker.beat()
        return worker.claims.drain_left_ms

    assert told() is None
    await draining.begin("w1", 60)
    assert 50_000 < (told() or 0) <= 60_000
    await draining.begin("w1", 0)
    assert told() == 0
    assert await draining.end("w1")
    assert not await draining.end("w1")
    assert told() is None


@pytest.mark.parametrize("told", [True, False])
async def test_only_a_worker_that_was_told_to_end_takes_the_mark_of_its_drain_along(store: Store, told: bool) -> None:
    await Draining(store.redis).begin("w1", 60)
    store.worker("w1").claims.leave(told=told)
    assert store.raw.exists(keys.drain("w1")) == (0 if told else 1)
    assert store.lasting() == []


async def test_a_worker_whose_lease_ran_out_takes_its_mark_along_and_never_that_of_another(store: Store) -> None:
    draining, worker = Draining(store.redis), store.worker("w1")
    await draining.begin("w1", 60)
    store.raw.delete(keys.lease("w1"))  # the broker was away for a while
    worker.claims.leave(told=True)
    assert not store.raw.exists(keys.drain("w1"))
    store.worker("w1")  # its successor, drained by somebody who wants just that
    await draining.begin("w1", 60)
    worker.claims.leave(told=True)
    assert store.raw.exists(keys.drain("w1"), keys.lease("w1")) == 2
