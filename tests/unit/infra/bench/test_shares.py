"""How what was served is shared out, and the error of a prediction."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.bench import shares
from infra.bench.asking import Outcome
from infra.bench.fairness_mix import BACKGROUND, REVIEW, Mix
from infra.bench.lines import CUT_OFF, Line, Served
from infra.bench.shares import Pace

pytestmark = pytest.mark.unit

PACE = Pace(prefill=1000, decode=50)
LINE = Line("a", "line0", fresh_tokens=10, output_tokens=10)


def answer(whole_s: float = 1.0, **fields: int) -> Outcome:
    return Outcome(whole_s / 2, whole_s, **fields)  # type: ignore[arg-type]


def test_service_counts_what_was_not_cached_and_what_came_out() -> None:
    outcome = answer(prompt_tokens=1500, cached_tokens=500, output_tokens=100)
    assert PACE.service_s(outcome) == pytest.approx(1 + 2)


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=20))
def test_jain_is_1_for_equal_shares_and_never_below_1_of_n(values: list[float]) -> None:
    assert shares.jain([values[0]] * len(values)) == pytest.approx(1)
    assert 1 / len(values) - 1e-9 <= shares.jain(values) <= 1 + 1e-9


def test_jain_of_one_who_has_everything_is_1_of_n() -> None:
    assert shares.jain([5, 0, 0, 0]) == pytest.approx(0.25)
    assert shares.jain([0, 0]) == 0


def test_what_was_cut_off_is_waited_for_but_not_attained_and_is_no_failure() -> None:
    cut = Served(LINE, 0, Outcome(7, 7, output_tokens=50, error=CUT_OFF))
    served = [Served(LINE, 0, answer(output_tokens=50)), cut]
    assert shares.attained_s(served, PACE) == {"a": pytest.approx(1)}
    assert shares.waits(served)["level 5"] == {"answers": 1, "longest_wait_s": 7, "mean_s": 1, "p90_s": 1}
    assert shares.failures(served) == []


def test_latencies_are_compared_only_where_both_have_answers() -> None:
    other = replace(LINE, agent="b")
    served = [Served(LINE, 0.0, answer(1.0)), Served(LINE, 0.0, answer(2.0)), Served(other, 0.0, answer(6.0))]
    assert shares.latency_ratio(served, ["a"], ["b"]) == 0.25
    assert shares.latency_ratio(served, ["a"], ["c"]) is None
    assert shares.latency_ratio(served, ["c"], ["a"]) is None
    assert shares.latency_ratio([], [], []) is None


def test_errors_are_failures() -> None:
    assert shares.failures([Served(LINE, 0, Outcome(1, 1, error="status 500: x"))]) == ["status 500: x"]


def test_the_prediction_is_judged_by_those_who_waited_or_were_told_to() -> None:
    at_once = answer(eta_ms=0, queue_ms=3)
    silent = answer(queue_ms=900)
    late, early = answer(eta_ms=1000, queue_ms=1500), answer(eta_ms=2000, queue_ms=1900)
    figures = shares.prediction([at_once, silent, late, early])
    assert (figures["told"], figures["waited"]) == (3, 2)
    assert figures["error_ms"] == {"p50": 300, "p90": 500}
    assert figures["early_by_ms"] == 200
    assert shares.prediction([silent]) == {}


def test_the_ratio_of_weights_is_per_agent() -> None:
    attained = {"big": 20.0, "small0": 10.0, "small1": 10.0}
    assert shares.ratio_of_weights(attained, ["big"], ["small0", "small1"]) == 2
    assert shares.ratio_of_weights(attained, ["big"], ["nobody"]) == 0


def test_each_agent_of_a_mix_wants_the_same_part_and_all_together_the_overload() -> None:
    mix = Mix(12, 4, 2.0, 3.0, PACE)
    wanted: dict[str, float] = {}
    for line in mix.lines:
        answer_s = line.fresh_tokens / PACE.prefill + line.output_tokens / PACE.decode
        wanted[line.agent] = wanted.get(line.agent, 0) + answer_s / (answer_s + line.pause_s)
    assert len(wanted) == 12
    assert all(part == pytest.approx(8 / 12, rel=0.05) for part in wanted.values())
    assert set(mix.peers) < set(wanted)
    assert {line.agent: line.level for line in mix.extras} == {REVIEW: 0, BACKGROUND: 9}
