"""One sweep of recovery over a store: whose jobs move, where to, and what is forgotten."""

import asyncio
from contextlib import closing
from typing import cast

import pytest

from infra import keys
from infra.celery_app import build
from infra.config import Settings
from infra.errors import BrokerDown
from scheduler import contact, recovery
from scheduler.attempts import MOST_ATTEMPTS
from scheduler.contract import Failed, Kind, WorkerState
from scheduler.membership import Membership
from scheduler.queue import Tickets
from scheduler.recovery import Recovery
from tests.integration.scheduler.store import LIFETIME_MS, Store, Worker, spec, to, worker_info

pytestmark = pytest.mark.integration

BOUND = 1.25
WAIT_S = 20


class LaidTickets:
    """Lays tickets as Celery would; for the workers in `refused` the broker takes none."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.refused: set[str] = set()

    async def publish(self, _job_id: str, _agent: str, worker: str, level: int) -> None:
        if worker in self.refused:
            raise BrokerDown("the broker takes no ticket")
        self.store.ticket(worker, level)


def sweeper(store: Store, *, lease_s: float = 0) -> Recovery:
    tickets = cast(Tickets, LaidTickets(store))
    return Recovery(store.redis, Membership(store.redis), store.jobs, tickets, BOUND, lease_s)


def laid(made: Recovery) -> LaidTickets:
    return cast(LaidTickets, made._tickets)


def dead(store: Store, name: str) -> Worker:
    """A worker that has been seen and whose lease is gone."""
    worker = store.worker(name)
    store.raw.delete(keys.lease(name))
    return worker


async def line_of(store: Store, name: str, count: int) -> list[str]:
    """`count` jobs in the line of worker `name`, of conversations of their own."""
    jobs = [spec() for _ in range(count)]
    for job in jobs:
        await store.admit(job, name)
    return [job.id for job in jobs]


# --- who cannot serve ---------------------------------------------------------------------------------------------


async def test_the_jobs_behind_an_engine_that_stays_down_move_to_a_worker_that_can_serve(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = store.worker("w1")
    waiting = await line_of(store, "w1", 3)
    store.worker("w2")
    made = sweeper(store)
    for state in (WorkerState.FAILING, WorkerState.LOADING):
        failing.beat(state=state)
        await made.sweep()
        assert store.line("w1") == waiting  # an engine may need a moment to come back
    monkeypatch.setattr(recovery, "STUCK_S", 0)
    await made.sweep()
    assert (store.line("w1"), store.line("w2")) == ([], waiting)
    assert (sum(store.tickets("w1")), sum(store.tickets("w2"))) == (0, 3)


async def test_a_job_moves_only_to_a_worker_of_its_model(store: Store) -> None:
    store.worker("w1")
    waiting = await line_of(store, "w1", 2)
    store.raw.delete(keys.lease("w1"))
    other = store.worker("w2", alive=False)
    info = worker_info("w2", other.incarnation).model_copy(update={"model": "another"})
    other.claims.beat(info, LIFETIME_MS, ())
    await sweeper(store).sweep()
    assert (store.line("w1"), store.line("w2")) == (waiting, [])
    store.worker("w3")
    await sweeper(store).sweep()
    assert (store.line("w1"), store.line("w3")) == ([], waiting)


async def test_an_engine_that_came_back_in_time_keeps_its_line(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = store.worker("w1")
    waiting = await line_of(store, "w1", 2)
    store.worker("w2")
    made = sweeper(store)
    worker.beat(state=WorkerState.FAILING)
    await made.sweep()
    worker.beat(state=WorkerState.READY)
    monkeypatch.setattr(recovery, "STUCK_S", 0)
    await made.sweep()
    assert store.line("w1") == waiting


async def test_jobs_stay_behind_a_failing_engine_when_nobody_else_can_serve(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "STUCK_S", 0)
    worker = store.worker("w1")
    waiting = await line_of(store, "w1", 2)
    worker.beat(state=WorkerState.FAILING)
    await sweeper(store).sweep()
    assert store.line("w1") == waiting


async def test_what_waits_for_an_engine_that_restarts_as_planned_goes_to_others_at_once_but_not_to_one_that_does_too(
    store: Store,
) -> None:
    worker, other = store.worker("w1"), store.worker("w2")
    waiting = await line_of(store, "w1", 2)
    worker.beat(state=WorkerState.RESTARTING)
    other.beat(state=WorkerState.RESTARTING)
    await sweeper(store).sweep()
    assert (store.line("w1"), store.line("w2")) == (waiting, [])
    other.beat(state=WorkerState.READY)
    await sweeper(store).sweep()
    assert (store.line("w1"), store.line("w2")) == ([], waiting)


# --- where to -----------------------------------------------------------------------------------------------------


async def test_the_moves_of_one_sweep_are_spread_and_fill_no_line_past_its_limit(store: Store) -> None:
    for name in ("w1", "w4"):
        store.worker(name)
        await line_of(store, name, 6)
    store.jobs = store.jobs_with(4)
    store.worker("w2")
    store.worker("w3")
    await line_of(store, "w2", 1)
    for name in ("w1", "w4"):
        store.raw.delete(keys.lease(name))
    await sweeper(store).sweep()
    lengths = {name: len(store.line(name)) for name in ("w1", "w2", "w3", "w4")}
    assert (lengths["w2"], lengths["w3"]) == (4, 4)
    assert sum(lengths.values()) == 13
    assert sum(store.tickets("w2")) + sum(store.tickets("w3")) == 8


async def test_a_few_moved_jobs_are_shared_among_idle_workers(store: Store) -> None:
    store.worker("w1")
    await line_of(store, "w1", 8)
    store.raw.delete(keys.lease("w1"))
    for name in ("w2", "w3"):
        store.worker(name)
    await sweeper(store).sweep()
    assert max(len(store.line(name)) for name in ("w2", "w3")) <= 5


async def test_a_full_line_is_passed_over_though_its_worker_is_the_least_loaded(store: Store) -> None:
    store.worker("w1")
    [job_id] = await line_of(store, "w1", 1)
    store.raw.delete(keys.lease("w1"))
    large = store.worker("w2")
    large.claims.beat(worker_info("w2", large.incarnation, slots=64), LIFETIME_MS, [])
    await line_of(store, "w2", 4)
    store.worker("w3")
    await line_of(store, "w3", 3)
    store.jobs = store.jobs_with(4)
    await sweeper(store).sweep()
    assert (store.line("w1"), store.line("w3")[0]) == ([], job_id)


async def test_a_line_that_others_filled_meanwhile_takes_no_moved_job(store: Store) -> None:
    store.worker("w1")
    store.worker("w2")
    [job_id] = await line_of(store, "w1", 1)
    await line_of(store, "w2", 2)
    full = store.jobs_with(2)
    assert not await full.move(job_id, "w1", to("w2"), 5, "c")
    assert (store.line("w1"), len(store.line("w2"))) == ([job_id], 2)


# --- what ran -----------------------------------------------------------------------------------------------------


async def running_job(store: Store, worker: Worker) -> str:
    """A job that `worker` runs, and whose ticket was taken."""
    job = spec()
    await store.admit(job, worker.name)
    store.raw.rpop(keys.level_list(worker.name, job.level))
    assert worker.claims.claim() is not None
    return job.id


async def test_what_a_dead_worker_ran_waits_at_another_in_the_same_sweep(store: Store) -> None:
    worker = store.worker("w1")
    job_id = await running_job(store, worker)
    store.worker("w2")
    store.raw.delete(keys.lease("w1"))
    await sweeper(store).sweep()
    assert (store.line("w1"), store.running("w1"), store.line("w2")) == ([], {}, [job_id])
    assert sum(store.tickets("w2")) == 1


async def test_what_a_worker_ran_before_it_was_started_anew_gets_its_ticket_at_once(store: Store) -> None:
    job_id = await running_job(store, store.worker("w1", "old"))
    store.raw.delete(keys.lease("w1"))
    store.worker("w1", "new")
    await sweeper(store).sweep()
    assert (store.line("w1"), sum(store.tickets("w1"))) == ([job_id], 1)


@pytest.mark.parametrize("state", [WorkerState.LOADING, WorkerState.FAILING])
async def test_of_an_engine_that_is_away_only_what_was_begun_moves_at_once(store: Store, state: WorkerState) -> None:
    worker = store.worker("w1")
    begun = await running_job(store, worker)
    [waits] = await line_of(store, "w1", 1)
    claimed = store.raw.hget(keys.job(begun), "attempt")
    assert claimed == "1"
    store.raw.hset(keys.running("w1"), begun, "nobody")  # as one is marked that no thread holds
    store.worker("w2")
    worker.beat(state=state)
    await sweeper(store).sweep()
    assert (store.line("w1"), store.line("w2")) == ([waits], [begun])


async def test_what_ran_waits_for_its_worker_where_there_is_no_other(store: Store) -> None:
    job_id = await running_job(store, store.worker("w1", "old"))
    store.raw.delete(keys.lease("w1"))
    made = sweeper(store)
    for _ in range(3):
        await made.sweep()
    assert (store.line("w1"), store.state(job_id), store.written(job_id)) == ([job_id], "queued", [])
    store.worker("w1", "new")
    await made.sweep()
    assert sum(store.tickets("w1")) == 1


async def test_after_its_last_attempt_what_ran_ends_in_words_for_its_client(store: Store) -> None:
    job_id = await running_job(store, store.worker("w1"))
    store.raw.hset(keys.job(job_id), "attempt", MOST_ATTEMPTS)
    store.raw.delete(keys.lease("w1"))
    await sweeper(store).sweep()
    [(_, [last])] = store.written(job_id)
    assert isinstance(last, Failed)
    assert "as those before it" in last.message


# --- what goes wrong ----------------------------------------------------------------------------------------------


async def test_a_ticket_that_cannot_be_laid_for_one_worker_keeps_nobody_else_waiting(store: Store) -> None:
    made = sweeper(store)
    for name in ("w1", "w2"):
        store.worker(name)
        await line_of(store, name, 1)
        store.raw.delete(keys.level_list(name, 5))
    laid(made).refused = {"w1"}
    for _ in range(recovery.SHORT_SWEEPS):
        await made.sweep()
    assert (sum(store.tickets("w1")), sum(store.tickets("w2"))) == (0, 1)


async def test_nobody_is_called_dead_before_the_broker_was_there_for_a_whole_lease(store: Store) -> None:
    dead(store, "w1")
    waiting = await line_of_the_dead(store)
    store.worker("w2")
    patient, sure = sweeper(store, lease_s=3600), sweeper(store)
    await patient.sweep()
    assert store.line("w1") == waiting
    await sure.sweep()
    assert (store.line("w1"), store.line("w2")) == ([], waiting)


async def line_of_the_dead(store: Store) -> list[str]:
    store.worker("w1", "again")
    waiting = await line_of(store, "w1", 2)
    store.raw.delete(keys.lease("w1"))
    return waiting


async def test_a_sweep_with_much_to_do_is_no_sign_that_the_broker_was_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command is judged by itself: here every one is quick, and together they are slow."""
    clock = Clock(0.4)
    monkeypatch.setattr(contact, "monotonic", clock)
    made = sweeper(store)
    for name in ("w1", "w2", "w3"):
        dead(store, name)
    for _ in range(5):
        await made.contact.announce_once()
        await made.sweep()
    assert made.contact.unbroken_s > 1


class Clock:
    """Each look at it is `step_s` later."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


async def test_a_sweep_that_hangs_does_not_keep_the_process_from_saying_that_it_lives(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact, "PERIOD_S", 0)
    hanging, announced_since = asyncio.Event(), asyncio.Event()

    async def announce() -> None:
        if hanging.is_set():
            announced_since.set()

    async def hangs() -> None:
        hanging.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(store.jobs, "announce", announce)
    made = sweeper(store)
    monkeypatch.setattr(made, "sweep", hangs)
    running = asyncio.create_task(made.run())
    await asyncio.wait_for(announced_since.wait(), WAIT_S)
    running.cancel()
    await asyncio.wait([running])


# --- what is left -------------------------------------------------------------------------------------------------


async def test_of_a_dead_worker_nothing_is_left(store: Store) -> None:
    worker = store.worker("w1")
    runs, lost = spec(), spec()
    await store.admit(runs)
    assert worker.claims.claim() is not None
    store.raw.hset(keys.job(runs.id), "attempt", MOST_ATTEMPTS)
    await store.admit(lost)
    with closing(build(Settings(redis_url=store.url))) as celery:
        for level in (0, 9):
            celery.send_task("nobody takes it any more", queue=keys.queue("w1"), priority=level, ignore_result=True)
    store.raw.delete(keys.lease("w1"), keys.job(lost.id))
    made = sweeper(store)
    for _ in range(2):
        await made.sweep()
    own = ("corral:line:", "corral:running:", "corral:homes:", "corral:control:", "llm.", "_kombu.")
    assert [name for name in store.raw.scan_iter(count=1000) if name.startswith(own)] == []
    assert store.raw.zrange(keys.WORKERS, 0, -1) == []
    [(_, [last])] = store.written(runs.id)
    assert isinstance(last, Failed)


async def test_a_worker_last_seen_long_ago_is_forgotten_too(store: Store) -> None:
    store.raw.zadd(keys.WORKERS, {"old": 1})
    store.ticket("old", 5)
    await sweeper(store).sweep()
    assert not store.raw.exists(keys.WORKERS, keys.level_list("old", 5))


async def test_a_job_whose_record_ran_out_takes_its_ticket_along(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "STUCK_S", 0)
    worker = store.worker("w1")
    gone, stays = await line_of(store, "w1", 2)
    worker.beat(state=WorkerState.FAILING)
    store.raw.delete(keys.job(gone))
    await sweeper(store).sweep()
    assert (store.line("w1"), sum(store.tickets("w1"))) == ([stays], 1)


async def test_a_living_worker_without_work_is_not_forgotten(store: Store) -> None:
    store.worker("w1")
    await sweeper(store).sweep()
    assert store.raw.zrange(keys.WORKERS, 0, -1) == ["w1"]


async def test_a_warm_up_of_a_worker_that_leaves_is_not_moved(store: Store) -> None:
    leaving = store.worker("w1")
    warm, other = spec(9, kind=Kind.WARM), spec()
    for job in (warm, other):
        await store.admit(job, "w1")
    store.worker("w2")
    leaving.beat(state=WorkerState.DRAINING)
    await sweeper(store).sweep()
    assert (store.line("w1"), store.line("w2")) == ([], [other.id])
    assert store.state(warm.id) is None
    assert (sum(store.tickets("w1")), sum(store.tickets("w2"))) == (0, 1)
