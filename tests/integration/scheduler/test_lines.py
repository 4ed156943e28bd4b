"""One look at the lines: what waits and runs, in the order of claims, at little cost."""

import asyncio

import pytest

from infra import keys
from scheduler.contract import ClusterView, JobSpec, WorkerInfo
from scheduler.lines import Lines
from scheduler.membership import Membership
from scheduler.policy.claiming import Rules, Service, Waiting
from scheduler.policy.lengths import UNKNOWN
from tests.doubles.memory import watched
from tests.integration.scheduler.store import Store, spec

pytestmark = pytest.mark.integration

SOME_BYTES = 50_000  # far less than 300 jobs need
NO_CLOCK = Rules(ageing_ms=1e12)  # the order of now is the order of later


@pytest.fixture
def lines(store: Store) -> Lines:
    return Lines(store.redis, NO_CLOCK)


async def infos(store: Store) -> list[WorkerInfo]:
    view: ClusterView = await Membership(store.redis).read()
    return [worker.info for worker in view.workers]


def scripts_run(store: Store) -> int:
    stats = store.raw.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {}).get("calls", 0))


async def admitted(store: Store, *jobs: JobSpec) -> None:
    for job in jobs:
        await store.admit(job)


async def test_the_line_is_seen_in_the_order_in_which_it_is_claimed(store: Store, lines: Lines) -> None:
    worker = store.worker()
    names = ("a", "a", "b", "c", "b", "c", "a")
    jobs = [spec(level, agent=agent) for level, agent in zip((5, 5, 5, 2, 9, 5, 2), names, strict=True)]
    await admitted(store, *jobs)
    store.raw.hset(keys.attained("agent:k:b"), mapping={"ms": 5000, "at_ms": store.now_ms()})
    await lines.read(await infos(store), "m")
    outlook = lines.of("w1")
    assert outlook is not None
    claimed = [job.id for _ in jobs if (job := worker.claims.claim(slots=99)) is not None]
    assert [step.job.id for step in outlook.steps] == claimed


async def test_what_runs_is_seen_with_what_is_left_of_it(store: Store, lines: Lines) -> None:
    worker = store.worker()
    await admitted(store, spec(), spec())
    for _ in range(2):
        assert worker.claims.claim(slots=2)
    await lines.read(await infos(store), "m")
    outlook = lines.of("w1")
    assert outlook is not None
    assert not outlook.free_for(0)
    assert 1000 < outlook.start_ms(newcomer()) < 20_000


def newcomer(agent: str = "new") -> Waiting:
    one = spec(agent=agent)
    return Waiting(one.id, one.level, "k", agent, one.identity.kind, 10**15, 0.0)


async def test_many_who_ask_at_once_share_one_look(store: Store, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.lines.FRESH_S", 600)  # however slow the machine is
    for name in ("w1", "w2"):
        store.worker(name)
    workers = await infos(store)
    before = scripts_run(store)
    await asyncio.gather(*(lines.read(workers, "m") for _ in range(50)))
    assert scripts_run(store) == before + 1
    await lines.read(workers[:1], "m")
    assert scripts_run(store) == before + 1


async def test_promises_are_known_as_of_just_now_though_the_lines_were_looked_at_meanwhile(
    store: Store, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By somebody who watches, and asks for no model's promises."""
    now_s = 1000.0
    monkeypatch.setattr("scheduler.lines.monotonic", lambda: now_s)
    store.worker()
    workers = await infos(store)
    await lines.read(workers, "m")
    store.raw.zadd(keys.promises("places", "m"), {"somebody": 1})
    now_s += 60
    await lines.look(workers)
    await lines.read(workers, "m")
    assert lines.promised("m") == 1


async def test_many_who_ask_of_different_workers_at_once_are_all_told_of_their_own(store: Store, lines: Lines) -> None:
    for number in range(8):
        store.worker(f"w{number}")
    workers = await infos(store)
    await asyncio.gather(*(lines.read([worker], "m") for worker in workers))
    assert [worker.name for worker in workers if lines.of(worker.name) is None] == []


async def test_a_look_at_many_lines_holds_the_store_up_for_a_few_of_them_at_a_time(
    store: Store, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.lines.MOST_LINES", 2)
    for number in range(5):
        store.worker(f"w{number}")
    workers = await infos(store)
    before = scripts_run(store)
    await lines.look(workers)
    assert scripts_run(store) == before + 3
    assert all(lines.of(worker.name) is not None for worker in workers)


async def test_of_workers_that_are_gone_nothing_is_remembered(
    store: Store, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("w1", "w2"):
        store.worker(name)
    workers = await infos(store)
    await lines.look(workers)
    assert lines.of("w2") is not None
    monkeypatch.setattr("scheduler.lines.KEPT_S", 0)
    await lines.look(workers[:1])
    assert lines.of("w2") is None


async def test_of_jobs_that_came_and_went_since_the_last_look_nothing_is_kept(store: Store, lines: Lines) -> None:
    store.worker()
    workers = await infos(store)
    await lines.look(workers)  # while slots are free there is no other, for as long as the process lives
    with watched("*/scheduler/*") as in_use_bytes:
        for job in (newcomer() for _ in range(300)):
            lines.add(workers[0], job, UNKNOWN, 100)
            lines.remove("w1", job.id)
        assert in_use_bytes() < SOME_BYTES


async def test_of_jobs_that_waited_at_an_earlier_look_nothing_is_kept(store: Store, lines: Lines) -> None:
    store.worker()
    workers = await infos(store)
    with watched("*/scheduler/*") as in_use_bytes:
        for _ in range(6):
            await admitted(store, *(spec() for _ in range(50)))
            await lines.look(workers)
            store.raw.delete(keys.line("w1"))
        await lines.look(workers)
        assert in_use_bytes() < SOME_BYTES


async def test_a_reader_that_leaves_takes_the_look_from_nobody(store: Store, lines: Lines) -> None:
    store.worker()
    workers = await infos(store)
    leaving = asyncio.create_task(lines.read(workers, "m"))
    staying = asyncio.create_task(lines.read(workers, "m"))
    await asyncio.sleep(0)
    leaving.cancel()
    await staying
    assert lines.of("w1") is not None


async def test_what_this_process_has_added_since_is_seen(store: Store, lines: Lines) -> None:
    store.worker()
    workers = await infos(store)
    await lines.read(workers, "m")
    jobs = [newcomer() for _ in range(3)]
    for job in [*jobs, jobs[0]]:
        lines.add(workers[0], job, UNKNOWN, 100)
    outlook = lines.of("w1")
    assert outlook is not None
    assert (outlook.queued, len(outlook.steps)) == (3, 3)


async def test_the_service_of_one_that_is_in_no_line_is_known(store: Store, lines: Lines) -> None:
    store.worker()
    who = spec(agent="b").identity
    store.raw.hset(keys.attained("agent:k:b"), mapping={"ms": 5000, "at_ms": 7})
    await lines.read(await infos(store), "m", who)
    assert lines.had(who) == (Service(), Service(5000.0, 7.0))
    assert lines.had(spec(agent="c").identity) == (Service(), Service())


async def test_a_record_that_ran_out_is_passed_over(store: Store, lines: Lines) -> None:
    store.worker()
    await admitted(store, spec(job_id="gone"), spec(job_id="here"))
    store.raw.delete(keys.job("gone"))
    await lines.read(await infos(store), "m")
    outlook = lines.of("w1")
    assert outlook is not None
    assert [step.job.id for step in outlook.steps] == ["here"]


async def test_what_runs_without_a_record_holds_its_slot(store: Store, lines: Lines) -> None:
    store.worker()
    for name in ("one", "two"):
        store.raw.hset(keys.running("w1"), name, "w1-1")
    await lines.read(await infos(store), "m")
    outlook = lines.of("w1")
    assert outlook is not None
    assert not outlook.free_for(0)
