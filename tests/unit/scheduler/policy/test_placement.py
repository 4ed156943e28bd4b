"""Placement: home first, bounded load, and a home left only for good reason."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scheduler.contract import ClusterView, WorkerState
from scheduler.policy.bounded import MOST_CANDIDATES, NO_LIMIT, candidates, choose, load, only
from scheduler.policy.ring import preference
from tests.unit.scheduler.policy.views import bounds, conversations, view, views, worker

pytestmark = pytest.mark.unit


def ready(cluster: ClusterView) -> dict[str, int]:
    return {w.info.name: load(w) for w in cluster.workers if w.info.state is WorkerState.READY}


@given(views, conversations, bounds)
def test_only_ready_workers_are_candidates_each_once(cluster: ClusterView, conversation: str, bound: float) -> None:
    found = [c.worker for c in candidates(cluster, conversation, None, bound)]
    assert len(set(found)) == len(found)
    assert set(found) <= set(ready(cluster))
    assert len(found) == min(len(ready(cluster)), MOST_CANDIDATES)


@given(views, conversations, bounds)
def test_some_candidate_always_has_room(cluster: ClusterView, conversation: str, bound: float) -> None:
    """The bound is at least the mean, so not everybody can be above it."""
    assume(0 < len(ready(cluster)) <= MOST_CANDIDATES)
    loads = ready(cluster)
    assert any(loads[c.worker] < c.limit for c in candidates(cluster, conversation, None, bound))


@given(views, conversations, bounds)
def test_a_limit_is_the_bound_times_the_mean_load(cluster: ClusterView, conversation: str, bound: float) -> None:
    loads = ready(cluster)
    found = candidates(cluster, conversation, None, bound)
    assume(found)
    slots = {w.info.name: len(w.info.slots) or 1 for w in cluster.workers if w.info.name in loads}
    mean = (sum(loads.values()) + 1) / sum(slots.values())
    for candidate in found:
        assert bound * mean * candidate.slots <= candidate.limit + 1e-6
        assert candidate.limit < bound * mean * candidate.slots + 1 + 1e-6


@given(views, conversations, bounds)
def test_the_same_view_gives_the_same_order(cluster: ClusterView, conversation: str, bound: float) -> None:
    turned = ClusterView(now_ms=9, workers=cluster.workers[::-1])
    assert candidates(cluster, conversation, None, bound) == candidates(turned, conversation, None, bound)


@given(views, conversations, bounds, st.data())
def test_a_home_is_left_only_when_a_round_waits_there_and_another_is_idle(
    cluster: ClusterView, conversation: str, bound: float, data: st.DataObject
) -> None:
    able = [w for w in cluster.workers if w.info.state is WorkerState.READY]
    assume(able)
    home = data.draw(st.sampled_from(able))
    found = candidates(cluster, conversation, home.info.name, bound)
    round_waits = sum(home.queued) >= (len(home.info.slots) or 1)
    another_idle = any(
        sum(w.queued) + w.running < (len(w.info.slots) or 1) for w in able if w.info.name != home.info.name
    )
    stays = (found[0].worker, found[0].limit) == (home.info.name, NO_LIMIT)
    assert stays is not (round_waits and another_idle)


def test_without_a_home_the_ring_decides_the_order() -> None:
    cluster = view(worker("w1"), worker("w2"), worker("w3"))
    order = preference("c", [("w1", 2.0), ("w2", 2.0), ("w3", 2.0)])
    assert [c.worker for c in candidates(cluster, "c", None, 1.25)] == order


@pytest.mark.parametrize("state", [WorkerState.LOADING, WorkerState.FAILING, WorkerState.DRAINING])
def test_a_home_that_cannot_serve_is_no_candidate(state: WorkerState) -> None:
    cluster = view(worker("w1", state=state), worker("w2"))
    assert [c.worker for c in candidates(cluster, "c", "w1", 1.25)] == ["w2"]


def test_an_unknown_home_is_ignored() -> None:
    assert [c.worker for c in candidates(view(worker("w1")), "c", "gone", 1.25)] == ["w1"]


def test_with_nobody_able_there_is_no_candidate() -> None:
    assert candidates(view(), "c", None, 1.25) == ()
    assert choose(view(), "c", 1.25) is None


@given(views, conversations, bounds)
def test_a_job_that_must_move_gets_the_first_with_room(cluster: ClusterView, conversation: str, bound: float) -> None:
    found = candidates(cluster, conversation, None, bound)
    chosen = choose(cluster, conversation, bound)
    busy = {w.info.name: sum(w.queued) + w.running for w in cluster.workers}
    free = [c.worker for c in found if busy[c.worker] < c.slots]
    under = [c.worker for c in found if ready(cluster)[c.worker] < c.limit]
    both = [name for name in under if name in free]
    allowed = both[:1] or free or under[:1] or [c.worker for c in found]
    assert chosen in allowed if allowed else chosen is None


def test_thinking_conversations_count_as_load() -> None:
    assert load(worker("w1", queued=1, running=2, homes=9)) == 9
    assert load(worker("w1", queued=7, running=2, homes=3)) == 9


@given(views)
def test_a_named_worker_is_the_only_candidate_if_it_is_able(cluster: ClusterView) -> None:
    for found in cluster.workers:
        names = [c.worker for c in only(cluster, found.info.name)]
        assert names == ([found.info.name] if found.info.name in ready(cluster) else [])
    assert only(cluster, "nobody") == ()
