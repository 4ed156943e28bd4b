"""Placing a job: atomic, bounded, and the same when it is asked twice."""

import asyncio

import pytest
from structlog.testing import capture_logs

from infra import keys
from infra.errors import NoWorker, QueueFull
from scheduler.contract import Kind, WorkerState
from scheduler.jobs import Admission
from scheduler.policy.placement import Candidate
from tests.integration.scheduler.store import API, HOME_MS, Store, candidates, spec

pytestmark = pytest.mark.integration

SERVICE_MS = 10_000.0


async def test_a_job_stands_in_the_line_with_its_record_home_and_wake(store: Store) -> None:
    store.worker("w1")
    job = spec(3, conversation="c")
    assert (await store.jobs.admit(job, candidates("w1"), 1)).worker == "w1"
    assert store.line("w1") == [job.id]
    assert store.state(job.id) == "queued"
    assert store.home("c") == "w1"
    assert store.raw.zscore(keys.homes("w1"), "c") is not None
    assert [fields["job"] for _, fields in store.raw.xrange(keys.wake(API))] == [job.id]


async def test_admitting_again_changes_nothing(store: Store) -> None:
    store.worker("w1")
    store.worker("w2")
    job = spec()
    assert (await store.jobs.admit(job, candidates("w1", "w2"), 1)).worker == "w1"
    fields = ["state", "attempt", "worker", "level", "arrival", "arrival_ms", "deadline_ms"]
    before = store.raw.hmget(keys.job(job.id), fields)
    assert (await store.jobs.admit(job, candidates("w2", "w1"), 1)).worker == "w1"
    assert store.raw.hmget(keys.job(job.id), fields) == before
    assert (store.line("w1"), store.line("w2")) == ([job.id], [])


async def test_fifty_at_once_never_pass_the_queue_limit(store: Store) -> None:
    store.worker("w1")
    store.worker("w2")
    jobs = store.jobs_with(7)
    admissions = (jobs.admit(spec(), candidates("w1", "w2"), 9) for _ in range(50))
    outcomes = await asyncio.gather(*admissions, return_exceptions=True)
    assert sorted(o.worker for o in outcomes if isinstance(o, Admission)) == ["w1"] * 7 + ["w2"] * 7
    refused = [o for o in outcomes if isinstance(o, QueueFull)]
    assert len(refused) == 36
    assert {error.retry_after_s for error in refused} == {9}
    assert (len(store.line("w1")), len(store.line("w2"))) == (7, 7)


async def test_the_first_candidate_under_its_limit_takes_the_job(store: Store) -> None:
    store.worker("w1")
    store.worker("w2")
    order = [Candidate("w1", 2, 2, expected_ms=SERVICE_MS), Candidate("w2", 2, 2, expected_ms=SERVICE_MS)]
    taken = [(await store.jobs.admit(spec(), order, 1)).worker for _ in range(4)]
    assert taken == ["w1", "w1", "w2", "w2"]


async def test_nobody_waits_behind_full_slots_while_another_worker_has_a_free_one(store: Store) -> None:
    store.worker("preferred")
    store.worker("other")
    for _ in range(2):
        await store.jobs.admit(spec(), candidates("preferred", expected_ms=SERVICE_MS), 1)
    order = [Candidate("preferred", 2, 9, expected_ms=SERVICE_MS), Candidate("other", 2, 1, expected_ms=SERVICE_MS)]
    taken = [(await store.jobs.admit(spec(), order, 1)).worker for _ in range(3)]
    assert taken == ["other", "other", "preferred"]


async def test_many_idle_conversations_do_not_drive_new_ones_to_full_slots(store: Store) -> None:
    store.worker("calm")
    store.worker("full")
    store.raw.zadd(keys.homes("calm"), {f"past-{number}": store.now_ms() for number in range(8)})
    for _ in range(2):
        await store.jobs.admit(spec(), candidates("full", expected_ms=SERVICE_MS), 1)
    order = [Candidate("full", 2, 9, expected_ms=SERVICE_MS), Candidate("calm", 2, 4, expected_ms=SERVICE_MS)]
    assert (await store.jobs.admit(spec(), order, 1)).worker == "calm"


async def test_with_all_over_their_limits_the_least_loaded_per_slot_takes_it(store: Store) -> None:
    store.worker("small")
    store.worker("large")
    for name in ("small", "large", "large"):
        await store.jobs.admit(spec(), candidates(name, expected_ms=SERVICE_MS), 1)
    order = [Candidate("small", 1, 1, expected_ms=SERVICE_MS), Candidate("large", 4, 1, expected_ms=SERVICE_MS)]
    assert (await store.jobs.admit(spec(), order, 1)).worker == "large"


async def test_a_worker_without_a_lease_is_passed_over(store: Store) -> None:
    store.worker("w2")
    assert (await store.jobs.admit(spec(), candidates("dead", "w2"), 1)).worker == "w2"


async def test_with_nobody_alive_there_is_no_worker_and_nothing_is_left(store: Store) -> None:
    with pytest.raises(NoWorker, match="corral worker") as caught:
        await store.jobs.admit(spec(), candidates("dead"), 4)
    assert caught.value.retry_after_s == 4
    assert store.raw.dbsize() == 0


async def test_a_refused_job_leaves_no_key(store: Store) -> None:
    store.worker("w1")
    jobs = store.jobs_with(1)
    await jobs.admit(spec(conversation="a"), candidates("w1"), 1)
    before = set(store.raw.scan_iter())
    with pytest.raises(QueueFull):
        await jobs.admit(spec(conversation="b"), candidates("w1"), 1)
    assert set(store.raw.scan_iter()) == before


async def test_every_key_of_a_waiting_job_runs_out_by_itself(store: Store) -> None:
    store.worker("w1")
    await store.jobs.admit(spec(), candidates("w1"), 1)
    assert store.lasting() == []


async def test_only_the_session_of_that_key_that_met_the_window_may_use_the_reserve(store: Store) -> None:
    worker = store.worker("w1")
    await store.jobs.met_window("k", "s")
    await store.jobs.met_window("another key", "other")
    jobs = [spec(session="s"), spec(session="other")]
    admitted = [await store.jobs.admit(job, candidates("w1"), 1) for job in [*jobs, *jobs]]
    assert [admission.may_use_reserve for admission in admitted] == [True, False, True, False]
    claimed = [worker.claims.claim(), worker.claims.claim()]
    assert [job.may_use_reserve for job in claimed if job] == [True, False]


async def test_a_draining_worker_takes_no_new_job(store: Store) -> None:
    store.worker("w1").beat(state=WorkerState.DRAINING)
    store.worker("w2")
    assert (await store.jobs.admit(spec(), candidates("w1", "w2"), 1)).worker == "w2"


async def test_a_conversation_that_left_its_home_counts_only_at_the_new_one(store: Store) -> None:
    store.worker("w1")
    store.worker("w2")
    await store.jobs.admit(spec(conversation="c"), candidates("w1"), 1)
    await store.jobs.admit(spec(conversation="c"), candidates("w2", "w1"), 1)
    assert store.home("c") == "w2"
    assert store.raw.zrange(keys.homes("w1"), 0, -1) == []


async def test_homes_older_than_their_lifetime_count_no_more(store: Store) -> None:
    """Also where a conversation goes on, and no new one comes."""
    store.worker("w1")
    await store.jobs.admit(spec(conversation="c"), candidates("w1"), 1)
    store.raw.zadd(keys.homes("w1"), {"old": store.now_ms() - HOME_MS - 1, "young": store.now_ms()})
    await store.jobs.admit(spec(conversation="c"), candidates("w1"), 1)
    assert set(store.raw.zrange(keys.homes("w1"), 0, -1)) == {"c", "young"}


async def test_a_warm_up_has_no_home_and_is_nobodys_conversation(store: Store) -> None:
    store.worker("w1")
    job = spec(9, conversation="c", kind=Kind.WARM)
    assert (await store.jobs.admit(job, candidates("w1"), 1)).worker == "w1"
    assert store.line("w1") == [job.id]
    assert store.home("c") is None
    assert not store.raw.exists(keys.home("c"), keys.homes("w1"))


# --- by cost ------------------------------------------------------------------------------------------------------


async def test_a_record_says_what_the_job_asks_and_what_it_costs_where_it_was_placed(store: Store) -> None:
    store.worker("w1")
    store.raw.hset(keys.lengths("main:k:agent"), mapping={"n": 50, "mean": 5.0, "m2": 2.0})
    job = spec().model_copy(update={"prompt_tokens": 3000, "agent_weight": 2.0, "key_weight": 0.5})
    known = await store.jobs.known(job)
    found = [Candidate("w1", 2, new_tokens=1200, expected_ms=4321.5)]
    await store.jobs.admit(job, found, 1, known)
    fields = ["key", "agent_weight", "key_weight", "prompt_tokens", "new_tokens", "expected_ms"]
    assert store.raw.hmget(keys.job(job.id), fields) == ["k", "2.0", "0.5", "3000", "1200", "4321.5"]
    mu, sigma = map(float, store.raw.hmget(keys.job(job.id), ["length_mu", "length_sigma"]))
    assert (mu, sigma) == (known.length.mu, known.length.sigma)
    assert 5.0 < mu < 5.1, "fifty answers outweigh what is known of nobody"


async def test_a_home_that_is_left_counts_the_conversation_no_longer_though_it_is_no_candidate(store: Store) -> None:
    for name in ("w1", "w2"):
        store.worker(name)
    await store.admit(spec(conversation="c"), "w1")
    again = spec(conversation="c")
    await store.jobs.admit(again, candidates("w2"), 1, await store.jobs.known(again))
    assert [store.raw.zscore(keys.homes(name), "c") is None for name in ("w1", "w2")] == [True, False]


async def test_how_long_the_answers_of_one_key_are_says_nothing_of_anothers(store: Store) -> None:
    """Agents of two keys may bear the same label."""
    job = spec()
    other = job.model_copy(update={"identity": job.identity.model_copy(update={"key_name": "l"})})
    before = await store.jobs.known(other)
    store.raw.hset(keys.lengths("main:k:agent"), mapping={"n": 50, "mean": 9.0, "m2": 2.0})
    assert (await store.jobs.known(other)).length == before.length
    assert (await store.jobs.known(job)).length != before.length


async def test_what_is_remembered_of_a_conversation_is_its_home_and_what_it_left_there(store: Store) -> None:
    store.worker("w1")
    job = spec(conversation="c")
    assert (await store.jobs.known(job)).home is None
    await store.jobs.admit(job, candidates("w1"), 1)
    store.raw.hset(keys.home("c"), "tokens", 777)
    home = (await store.jobs.known(spec(conversation="c"))).home
    assert home is not None
    assert (home.worker, home.tokens) == ("w1", 777)
    assert abs(home.used_ms - store.now_ms()) < 60_000


@pytest.mark.parametrize(("level", "kept"), [(0, True), (2, True), (3, False)])
async def test_a_request_of_an_urgent_level_has_slots_kept_for_such(store: Store, level: int, kept: bool) -> None:
    store.worker("w1")
    await store.jobs.admit(spec(level), candidates("w1"), 1)
    assert bool(store.raw.exists(keys.urgent("w1"))) is kept


async def test_a_worker_that_keeps_a_slot_free_hears_of_a_new_job(store: Store) -> None:
    worker = store.worker("w1")
    worker.claims.cancellations()
    await store.jobs.admit(spec(), candidates("w1"), 1)
    assert not store.raw.exists(keys.control("w1"))
    store.raw.set(keys.holding("w1"), 1)
    await store.jobs.admit(spec(), candidates("w1"), 1)
    assert worker.claims.cancellations() == [""]


async def test_a_home_is_left_for_a_worker_that_is_sooner_by_the_margin_and_the_log_says_so(store: Store) -> None:
    for name in ("w1", "w2"):
        store.worker(name)
    await store.jobs.admit(spec(conversation="c"), candidates("w1"), 1)
    job = spec(conversation="c")
    known = await store.jobs.known(job)
    for prefill_ms, worker in ((9_000.0, "w1"), (8_900.0, "w2")):
        found = [Candidate("w1", 2, is_home=True, prefill_ms=9_950), Candidate("w2", 2, prefill_ms=prefill_ms)]
        with capture_logs() as lines:
            assert (await store.jobs.admit(spec(conversation="c"), found, 1, known)).worker == worker
    [line] = lines
    assert (line["event"], line["worker"], line["to"]) == ("left_home", "w1", "w2")
    assert (line["home_cost_ms"], line["cost_ms"]) == (9_950, 8_900)
    assert store.home("c") == "w2"
    assert store.raw.zscore(keys.homes("w1"), "c") is None
