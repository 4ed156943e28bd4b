"""Refusals: why, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.contract import ClusterView, WorkerState
from scheduler.policy.admission import LOADING_RETRY_S, able, ready, retry_after_s, serving, why_none
from tests.unit.scheduler.policy.views import view, views, worker

pytestmark = pytest.mark.unit


@given(views, st.floats(0, 1e9))
def test_the_retry_hint_is_whole_seconds_from_1_to_60(cluster: ClusterView, answer_s: float) -> None:
    hint = retry_after_s(cluster, answer_s)
    assert isinstance(hint, int)
    assert 1 <= hint <= 60


def test_the_hint_grows_with_what_is_ahead() -> None:
    hints = [retry_after_s(view(worker("w1", slots=2, queued=queued)), 10) for queued in (0, 2, 4, 100)]
    assert hints == [1, 10, 20, 60]


def test_with_nobody_able_the_hint_is_a_short_one() -> None:
    assert retry_after_s(view(worker("w1", state=WorkerState.LOADING)), 10) == LOADING_RETRY_S


@given(views)
def test_able_are_exactly_the_ready_ones_and_without_any_those_that_restart_as_planned(cluster: ClusterView) -> None:
    states = {w.info.state for w in cluster.workers}
    wanted = WorkerState.READY if WorkerState.READY in states else WorkerState.RESTARTING
    assert able(cluster) == tuple(w for w in cluster.workers if w.info.state is wanted)
    assert ready(cluster) == tuple(w for w in cluster.workers if w.info.state is WorkerState.READY)


def test_a_model_is_served_by_its_own_workers_and_maybe_by_those_that_have_not_told_theirs() -> None:
    loading = worker("w3", state=WorkerState.LOADING)
    cluster = view(worker("w1", model="a"), worker("w2", model="b"), loading)
    assert [w.info.name for w in serving(cluster, "b").workers] == ["w2", "w3"]
    assert serving(cluster, "") == cluster


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (view(), "start one with `corral up`"),
        (view(worker("w1", state=WorkerState.LOADING), worker("w2", state=WorkerState.FAILING)), "still loading"),
        (view(worker("w1", state=WorkerState.DRAINING)), "start another one"),
        (view(worker("w1", state=WorkerState.FAILING, reason="out of memory")), "no worker is ready: out of memory"),
        (view(worker("w1", state=WorkerState.FAILING)), "their engines are restarting"),
    ],
)
def test_a_refusal_says_why_and_what_to_do(cluster: ClusterView, words: str) -> None:
    assert words in why_none(cluster)
