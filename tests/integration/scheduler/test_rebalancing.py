"""One look at the balance of lines over a store: which jobs go where, and what their books say afterwards."""

import threading
from typing import Any, cast

import pytest

from infra import keys
from infra.observability import metrics
from scheduler.contract import JobSpec, Kind
from scheduler.jobs import Jobs
from scheduler.membership import Membership
from scheduler.policy.rebalancing import Move, moves
from scheduler.queue import Tickets
from scheduler.rebalancing import Rebalancing
from tests.integration.scheduler.store import Store, candidates, spec, worker_info

pytestmark = pytest.mark.integration

SERVICE_MS = 10_000.0
LONG_AGO_MS = 60_000


class LaidTickets:
    """Lays tickets as Celery would."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def publish(self, _job_id: str, _agent: str, worker: str, level: int) -> None:
        self.store.ticket(worker, level)


async def balance(store: Store, jobs: Jobs | None = None) -> int:
    view = await Membership(store.redis).read()
    return await Rebalancing(store.redis, jobs or store.jobs, cast(Tickets, LaidTickets(store))).balance(view)


async def wait_at(store: Store, worker: str, *jobs: JobSpec, since_ms: int = LONG_AGO_MS) -> list[str]:
    """Jobs of ten seconds each in the line of `worker`, there for a minute."""
    for job in jobs:
        await store.jobs.admit(job, candidates(worker, expected_ms=SERVICE_MS), 1)
        store.ticket(worker, job.level)
        store.raw.hset(keys.job(job.id), "arrival_ms", store.now_ms() - since_ms)
    return [job.id for job in jobs]


async def test_idler_workers_take_from_the_longest_line_until_all_wait_about_as_long(store: Store) -> None:
    for name in ("w1", "w2", "w3"):
        store.worker(name)
    waiting = await wait_at(store, "w1", *(spec() for _ in range(6)))
    short = await wait_at(store, "w3", spec(), spec())
    before = metrics.MOVED._value.get()
    assert await balance(store) == metrics.MOVED._value.get() - before == 3
    assert store.line("w1") == [waiting[0], waiting[1], waiting[4]]
    assert store.line("w2") == waiting[2:4]
    assert store.line("w3") == [waiting[5], *short], "a job keeps its place by arrival"
    assert [sum(store.tickets(name)) for name in ("w1", "w2", "w3")] == [3, 2, 3]
    assert store.raw.hget(keys.COUNTS, "moved") == "3"


async def test_a_moved_job_is_at_home_where_it_went_with_what_it_costs_there(store: Store) -> None:
    store.worker("w1")
    store.worker("w2")
    job = spec(1, conversation="c")
    await wait_at(store, "w1", *(spec(1, agent=name) for name in "ab"), job)
    assert await balance(store) == 1
    fields = ["worker", "state", "attempt", "moved", "new_tokens", "expected_ms"]
    *said, expected_ms = store.raw.hmget(keys.job(job.id), fields)
    assert said == ["w2", "queued", "0", "1", "1"]
    assert float(expected_ms) != SERVICE_MS
    assert store.home("c") == "w2"
    assert store.raw.exists(keys.urgent("w2"))


async def test_a_worker_that_keeps_a_slot_hears_of_a_job_that_came_by_a_move(store: Store) -> None:
    store.worker("w1")
    worker = store.worker("w2")
    store.raw.set(keys.holding("w2"), 1)
    worker.claims.cancellations()
    await wait_at(store, "w1", *(spec(agent=name) for name in "abc"))
    assert await balance(store) == 1
    assert worker.claims.cancellations() == [""]


async def test_a_job_moves_once_in_its_life(store: Store) -> None:
    store.worker("w1")
    await wait_at(store, "w1", *(spec(agent=name) for name in "abcd"))
    store.worker("w2")
    assert await balance(store) == 2
    [moved, also] = store.line("w2")
    await wait_at(store, "w2", *(spec(5, agent=f"late-{name}") for name in "ab"))
    store.worker("w3")
    await balance(store)
    assert {moved, also} <= set(store.line("w2"))
    assert len(store.line("w3")) > 0


async def test_a_job_that_waits_beside_a_kept_slot_goes_to_a_free_one_and_none_goes_to_a_kept_one(store: Store) -> None:
    """The levels' urgent share of two slots, one in four as it is set, is none; so they have four."""
    four = [store.worker(name) for name in ("w1", "w2", "w3")]
    for one in four:
        one.claims.beat(worker_info(one.name, one.incarnation, slots=4), 60_000, ())
    for one in four[:2]:  # on w3 all slots are free
        await wait_at(store, one.name, *(spec(agent=f"runs-{number}") for number in range(3)))
        assert all(one.claims.claim(4) for _ in range(3))
        store.raw.set(keys.urgent(one.name), 1)
    [job] = await wait_at(store, "w1", spec())
    store.raw.set(keys.urgent("w3"), 1)
    assert await balance(store) == 1
    assert store.line("w3") == [job]


async def test_who_has_just_come_stays_and_so_does_a_warm_up(store: Store) -> None:
    store.worker("w1")
    await wait_at(store, "w1", *(spec(agent=name) for name in "ab"))
    await wait_at(store, "w1", spec(agent="new"), since_ms=0)
    await wait_at(store, "w1", spec(9, kind=Kind.WARM))
    store.worker("w2")
    assert await balance(store) == 0


async def test_a_job_stays_when_it_starts_here_as_soon(store: Store) -> None:
    store.worker("w1")
    store.worker("w2")
    for name in ("w1", "w2"):
        await wait_at(store, name, *(spec(agent=agent) for agent in "abcd"))
    assert await balance(store) == 0


async def test_while_it_is_decided_the_event_loop_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen long lines take a fifth of a second, in which every running answer would stand still."""
    store.worker("w1")
    store.worker("w2")
    await wait_at(store, "w1", spec(agent="a"), spec(agent="b"), spec(agent="c"))
    decided_in: list[threading.Thread] = []

    def decide(*books: Any) -> tuple[Move, ...]:
        decided_in.append(threading.current_thread())
        return moves(*books)

    monkeypatch.setattr("scheduler.rebalancing.moves", decide)
    assert await balance(store) == 1
    assert decided_in[0] is not threading.current_thread()


async def test_a_job_never_fills_a_line_past_its_limit(store: Store) -> None:
    store.worker("w1")
    await wait_at(store, "w1", *(spec(agent=name) for name in "abcdefgh"))
    store.worker("w2")
    assert await balance(store, store.jobs_with(1)) == 1
    assert len(store.line("w2")) == 1
