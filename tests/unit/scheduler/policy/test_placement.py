"""Placement: the home first, the soonest first token, bounded loads, windows, unequal workers."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scheduler.contract import ClusterView, Rates, StoreInfo, WorkerState, WorkerView
from scheduler.policy.admission import able
from scheduler.policy.load import Load
from scheduler.policy.placement import (
    MOST_CANDIDATES,
    NEAR_MS,
    NO_LIMIT,
    Candidate,
    Home,
    Known,
    Reason,
    candidates,
    choose,
    cost_ms,
    only,
    why,
)
from tests.unit.scheduler.policy.placement_time import measure
from tests.unit.scheduler.policy.sites import (
    NOW_MS,
    RATES,
    bounds,
    busy,
    clusters,
    fleet_of,
    holding,
    jobs,
    known,
    loads,
    worker,
)

pytestmark = pytest.mark.unit

MARGIN_MS = 1000.0
MOST_QUEUED = 64
LATELY = Home("w1", 20_000, NOW_MS - 1000)
IDLE = Load()


def at(worker: str, *, home: bool = False) -> Candidate:
    return Candidate(worker, slots=4, is_home=home)


@pytest.mark.parametrize(
    ("found", "worker", "reason"),
    [
        ([at("w1", home=True), at("w2")], "w1", Reason.HOME),
        ([at("w1", home=True)], "w1", Reason.HOME),
        ([at("w1", home=True), at("w2")], "w2", Reason.SOONER),
        ([at("w1"), at("w2")], "w1", Reason.FIRST),
        ([at("w1"), at("w2")], "w2", Reason.SPREAD),
        ([at("w1")], "w1", Reason.ONLY),
    ],
)
def test_it_can_be_told_why_a_worker_took_a_request(found: list[Candidate], worker: str, reason: Reason) -> None:
    assert why(found, worker) is reason


def taken(found: tuple[Candidate, ...], job: Known, **at: Load) -> str:
    choice = choose(found, {one.worker: at.get(one.worker, IDLE) for one in found}, job, MARGIN_MS, MOST_QUEUED)
    assert choice is not None
    return found[choice.index].worker


def taking(cluster: tuple[WorkerView, ...]) -> tuple[WorkerView, ...]:
    return able(ClusterView(now_ms=0, workers=cluster))


def takers(cluster: tuple[WorkerView, ...]) -> set[str]:
    return {w.info.name for w in taking(cluster)}


# --- candidates ---------------------------------------------------------------------------------------------------


@given(clusters, jobs, bounds)
def test_only_workers_that_take_work_are_candidates_each_once(
    cluster: tuple[WorkerView, ...], job: Known, bound: float
) -> None:
    found = [one.worker for one in candidates(fleet_of(*cluster), job, bound)]
    assert len(set(found)) == len(found) <= MOST_CANDIDATES
    assert set(found) <= takers(cluster)
    assert bool(found) is bool(takers(cluster))


@given(clusters, jobs, bounds)
def test_the_same_cluster_gives_the_same_candidates(cluster: tuple[WorkerView, ...], job: Known, bound: float) -> None:
    here, there = (candidates(fleet_of(*order), job, bound) for order in (cluster, cluster[::-1]))
    assert [(c.worker, c.is_home, c.new_tokens) for c in here] == [(c.worker, c.is_home, c.new_tokens) for c in there]


@given(clusters, jobs, bounds)
def test_an_able_home_comes_first_and_is_never_over_its_limit(
    cluster: tuple[WorkerView, ...], job: Known, bound: float
) -> None:
    fleet = fleet_of(*cluster)
    found = candidates(fleet, job, bound)
    can = job.home is not None and job.home.worker in fleet.fitting_prompt(job.prompt_tokens).sites
    assert [one.worker for one in found if one.is_home] == ([job.home.worker] if can and job.home else [])
    assert not can or (found[0].is_home and found[0].limit == NO_LIMIT)


@given(clusters, jobs, bounds)
def test_some_worker_always_has_room_under_its_limit(cluster: tuple[WorkerView, ...], job: Known, bound: float) -> None:
    """The bound is at least a fair share, so not everybody can be above it."""
    fleet = fleet_of(*cluster).fitting_prompt(job.prompt_tokens)
    found = candidates(fleet, replace(job, home=None), bound)
    assume(found and len(fleet.sites) <= MOST_CANDIDATES)
    assert any(fleet.sites[one.worker].homes < one.limit for one in found)


@given(clusters, jobs, bounds)
def test_a_prompt_goes_only_where_it_fits_or_where_the_window_is_the_widest(
    cluster: tuple[WorkerView, ...], job: Known, bound: float
) -> None:
    infos = [w.info for w in taking(cluster)]
    widest = max((info.prompt_limit_tokens or 10**9 for info in infos), default=0)
    windows = {info.name: info.prompt_limit_tokens or 10**9 for info in infos}
    for one in candidates(fleet_of(*cluster), job, bound):
        assert windows[one.worker] >= min(job.prompt_tokens, widest)


def test_a_home_whose_window_the_prompt_has_outgrown_is_left() -> None:
    fleet = fleet_of(worker("w1", window=32_000), worker("w2", window=128_000))
    assert taken(candidates(fleet, known(prompt_tokens=20_000, home=LATELY), 1.25), known()) == "w1"
    assert taken(candidates(fleet, known(prompt_tokens=40_000, home=LATELY), 1.25), known()) == "w2"


@given(clusters, jobs)
def test_a_named_worker_is_the_only_candidate_if_it_is_able(cluster: tuple[WorkerView, ...], job: Known) -> None:
    for one in cluster:
        name = one.info.name
        found = only(fleet_of(*cluster), job, name)
        assert [(c.worker, c.limit) for c in found] == ([(name, NO_LIMIT)] if name in takers(cluster) else [])
    assert only(fleet_of(*cluster), job, "nobody") == ()


# --- what is cached ------------------------------------------------------------------------------------------------


def new_tokens(*workers: WorkerView, home: Home = LATELY, prompt_tokens: int = 21_000) -> dict[str, int]:
    found = candidates(fleet_of(*workers), known(home=home, prompt_tokens=prompt_tokens), 1.25)
    return {one.worker: one.new_tokens for one in found}


STORE = StoreInfo(off="", place="shared", bytes_per_token=16_000, restore_bytes_per_s=16_000_000_000)
LONG_AGO = replace(LATELY, used_ms=NOW_MS - 60_000)


def test_what_the_home_holds_needs_no_prefill_there() -> None:
    assert new_tokens(worker("w1"), worker("w2")) == {"w1": 1000, "w2": 21_000}
    assert new_tokens(worker("w1", held=(holding("c", 20_000),)), worker("w2"), home=LONG_AGO)["w1"] == 1000


def test_a_home_whose_slot_another_took_long_ago_holds_nothing() -> None:
    assert new_tokens(worker("w1", held=(holding("d", 1),)), home=LONG_AGO) == {"w1": 21_000}


def test_a_saved_cache_is_restored_wherever_the_store_is_shared() -> None:
    there = [worker(f"w{number}", store=STORE) for number in (1, 2)]
    other = worker("w3", store=STORE.model_copy(update={"place": "elsewhere"}))
    nowhere = worker("w4", store=STORE.model_copy(update={"place": ""}))
    assert new_tokens(*there, other, nowhere, home=LONG_AGO) == {"w1": 1000, "w2": 1000, "w3": 21_000, "w4": 21_000}


def test_of_what_is_in_a_slot_only_the_saved_part_is_found_elsewhere() -> None:
    home = worker("w1", store=STORE, held=(holding("c", 20_000, saved_tokens=15_000),))
    assert new_tokens(home, worker("w2", store=STORE)) == {"w1": 1000, "w2": 6000}


def test_a_restore_slower_than_a_prefill_is_no_use() -> None:
    slow = STORE.model_copy(update={"restore_bytes_per_s": 1000})
    assert new_tokens(worker("w1", store=slow), home=LONG_AGO) == {"w1": 21_000}


# --- the choice ----------------------------------------------------------------------------------------------------


@given(clusters, jobs, bounds, st.data())
def test_nobody_is_sent_where_he_waits_longer_by_more_than_the_margin(
    cluster: tuple[WorkerView, ...], job: Known, bound: float, data: st.DataObject
) -> None:
    found = candidates(fleet_of(*cluster), job, bound)
    at = {one.worker: data.draw(loads) for one in found}
    choice = choose(found, at, job, MARGIN_MS, MOST_QUEUED)
    if choice is None:
        assert not found
        return
    costs = [cost_ms(one, at[one.worker], job) for one in found]
    assert choice.costs == tuple(costs)
    assert costs[choice.index] <= min(costs) + max(MARGIN_MS, NEAR_MS) + NEAR_MS
    home = next((index for index, one in enumerate(found) if one.is_home), None)
    if home is not None:
        assert (choice.index == home) is (costs[home] <= min(costs) + MARGIN_MS)


@given(clusters, jobs, bounds, st.data())
def test_a_full_line_takes_nobody(
    cluster: tuple[WorkerView, ...], job: Known, bound: float, data: st.DataObject
) -> None:
    found = candidates(fleet_of(*cluster), job, bound)
    at = {one.worker: data.draw(loads) for one in found}
    choice = choose(found, at, job, MARGIN_MS, 10)
    open_ = [index for index, one in enumerate(found) if at[one.worker].queued < 10]
    assert choice.index in open_ if choice else not open_


def test_a_home_is_left_only_for_a_worker_that_answers_sooner_by_the_margin() -> None:
    """20,000 tokens at 500 a second are 40 s of prefill."""
    fleet = fleet_of(worker("w1"), worker("w2"))
    job = known(home=LATELY, prompt_tokens=21_000)
    found = candidates(fleet, job, 1.25)
    assert taken(found, job, w1=busy(running=2, queued=7)) == "w1"
    assert taken(found, job, w1=busy(running=2, queued=8)) == "w2"


def test_a_short_prompt_leaves_a_busy_home_at_once() -> None:
    fleet = fleet_of(worker("w1"), worker("w2"))
    job = known(home=Home("w1", 100, NOW_MS), prompt_tokens=200)
    found = candidates(fleet, job, 1.25)
    assert taken(found, job, w1=busy(running=2, each_ms=2_000)) == "w1"
    assert taken(found, job, w1=busy(running=2, each_ms=10_000)) == "w2"


def test_without_a_home_the_ring_decides_among_equals() -> None:
    fleet = fleet_of(*(worker(f"w{number}") for number in range(4)))
    for number in range(20):
        job = known(f"c{number}")
        assert taken(candidates(fleet, job, 1.25), job) == fleet.ring.preference(job.conversation)[0]


def test_nobody_waits_behind_full_slots_while_another_worker_has_a_free_one() -> None:
    fleet = fleet_of(worker("w1"), worker("w2"))
    for number in range(20):
        job = known(f"c{number}")
        assert taken(candidates(fleet, job, 1.25), job, w1=busy(running=2), w2=busy(running=1, homes=99)) == "w2"


def test_a_new_conversation_rather_takes_a_slot_that_is_nobodys() -> None:
    """Displacing another conversation costs it a prefill later."""
    full = worker("w1", slots=2, held=(holding("a", 30_000), holding("b", 30_000, slot=1)))
    fleet = fleet_of(full, worker("w2", slots=4))
    for number in range(20):
        job = known(f"c{number}")
        found = candidates(fleet, job, 4)
        assert taken(found, job, w1=Load(homes=2), w2=Load(homes=2)) == "w2"


def test_a_worker_over_its_share_is_passed_over() -> None:
    fleet = fleet_of(worker("w1", homes=4), worker("w2", homes=1))
    for number in range(20):
        job = known(f"c{number}")
        assert taken(candidates(fleet, job, 1.25), job, w1=Load(homes=4), w2=Load(homes=1)) == "w2"


@pytest.mark.parametrize("state", [WorkerState.LOADING, WorkerState.FAILING, WorkerState.DRAINING])
def test_a_home_that_cannot_serve_is_no_candidate(state: WorkerState) -> None:
    fleet = fleet_of(worker("w1", state=state), worker("w2"))
    assert [one.worker for one in candidates(fleet, known(home=LATELY), 1.25)] == ["w2"]


def test_with_nobody_able_there_is_no_candidate_and_no_choice() -> None:
    assert candidates(fleet_of(), known(), 1.25) == ()
    assert choose((), {}, known(), MARGIN_MS, MOST_QUEUED) is None


# --- unequal workers -----------------------------------------------------------------------------------------------


def test_a_faster_worker_has_a_larger_share_of_the_conversations() -> None:
    fast = Rates(prefill_tokens_per_s=1500, decode_tokens_per_s=60)
    fleet = fleet_of(worker("w1"), worker("w2", rates=fast), worker("w3", slots=6))
    assert fleet.sites["w2"].weight == pytest.approx(3 * fleet.sites["w1"].weight)
    assert fleet.sites["w3"].weight == pytest.approx(3 * fleet.sites["w1"].weight)


def test_a_worker_that_has_shown_no_speed_is_taken_to_be_like_the_others() -> None:
    fast = Rates(prefill_tokens_per_s=8000, decode_tokens_per_s=400)
    fleet = fleet_of(worker("w1", rates=fast), worker("w2", rates=fast), worker("new", rates=Rates()))
    assert fleet.sites["new"].weight == fleet.sites["w1"].weight
    assert fleet_of(worker("only", rates=Rates())).sites["only"].token_ms == 1


def test_a_long_prompt_goes_to_the_fast_worker_and_waits_for_it_as_long_as_that_pays() -> None:
    fast = RATES.model_copy(update={"prefill_tokens_per_s": 5000})
    fleet = fleet_of(worker("slow"), worker("fast", rates=fast))
    job = known(prompt_tokens=20_000)
    found = candidates(fleet, job, 1.25)
    assert taken(found, job) == "fast"
    assert taken(found, job, fast=busy(running=2, queued=5)) == "fast"
    assert taken(found, job, fast=busy(running=2, queued=8)) == "slow"


def test_how_long_placement_takes_can_be_measured() -> None:
    assert measure(3, placements=4).placement_ms > 0
