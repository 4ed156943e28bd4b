"""Which caller of an overload counts as what."""

import pytest

from infra.bench import overload_figures as figures
from infra.bench.asking import Outcome
from infra.bench.overload_load import Attempt

pytestmark = pytest.mark.unit


def refusal(told_s: int, status: int = 529) -> Outcome:
    return Outcome(0.1, 0.1, error=f"status {status}: full", status=status, retry_after_s=told_s)


def answer(queue_ms: int = 0) -> Outcome:
    return Outcome(0.5, 1 + queue_ms / 1000, output_tokens=9, status=200, queue_ms=queue_ms)


def test_a_retry_counts_only_when_it_was_told_less_than_the_cap() -> None:
    attempts = [
        Attempt(True, refusal(5), answer()),
        Attempt(False, refusal(9, 503), refusal(9)),
        Attempt(True, refusal(60), refusal(60)),
        Attempt(True, refusal(30)),
        Attempt(True, answer(2000)),
    ]
    told = figures.figures_of(attempts)
    assert (told["callers"], told["let_in"], told["refused"]) == (5, 1, {"503": 1, "529": 3})
    assert told["retries"] == {"told": 3, "tried": 2, "succeeded": 1, "share": 0.5, "failed": {"529 told 9": 1}}
    assert told["retries_told_the_cap"]["share"] == 0
    assert told["told_s"] == {"least": 5, "p50": 19.5, "most": 60}
    assert told["refusal_ms"]["p95"] == 100
    assert told["errors"] == []


def test_an_answer_that_was_let_in_and_broke_is_an_error() -> None:
    broken = Outcome(1, 1, error="the stream ended", status=200)
    assert figures.figures_of([Attempt(True, broken)])["errors"] == ["the stream ended"]


def test_an_answers_own_time_leaves_out_its_wait() -> None:
    assert figures.own_s([answer(0), answer(5000), answer(9000)]) == pytest.approx(1)


def test_memory_that_grows_shows_and_memory_that_grew_at_first_does_not() -> None:
    flat, growing = [50, 100, 100, 100, 100, 100, 100, 100], [100, 110, 120, 130, 140, 150, 160, 170]
    assert figures.growth([n * 2**20 for n in flat])["ratio"] == 1
    assert figures.growth([n * 2**20 for n in growing])["ratio"] > 1.2
    assert figures.growth([2**20])["ratio"] == 1
