"""Arms take turns, and a ratio is that of two figures of one round."""

import asyncio
from functools import partial
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.bench import compare
from infra.bench.compare import Runs
from infra.bench.progress import Told
from infra.bench.report import Figures
from infra.errors import EngineError

pytestmark = pytest.mark.unit

times = st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), min_size=1, max_size=9)


@given(rounds=times)
def test_a_ratio_is_taken_inside_a_round_and_its_spread_is_that_of_the_rounds(
    rounds: list[tuple[float, float]],
) -> None:
    runs = {"a": [{"ms": a} for a, _ in rounds], "b": [{"ms": b} for _, b in rounds]}
    each = [b / a for a, b in rounds]
    (found,) = compare.ratios(runs).values()
    assert found["ms"] == [round(value, 3) for value in (median(each), min(each), max(each))]


def test_what_cannot_be_compared_has_no_ratio() -> None:
    runs = {
        "a": [{"ms": 2.0, "failed": 1, "about": "x", "prompt_tokens": 5, "zero": 0.0, "mine": 1.0}],
        "b": [{"ms": 3.0, "failed": 2, "about": "y", "prompt_tokens": 5, "zero": 1.0}],
    }
    assert compare.ratios(runs) == {"b": {"ms": [1.5, 1.5, 1.5]}}


def test_a_round_without_a_figure_does_not_hide_it_in_the_others() -> None:
    runs: Runs = {"a": [{"ms": 2.0}, {"ms": 2.0}], "b": [{"failed": 9}, {"ms": 3.0}]}
    assert compare.ratios(runs) == {"b": {"ms": [1.5, 1.5, 1.5]}}


def test_one_arm_has_no_ratios() -> None:
    runs = {"a": [{"ms": 2.0, "failed": 0}]}
    assert compare.as_json(runs) == {"arms": runs}


def test_arms_take_turns() -> None:
    order = []

    async def arm(name: str, number: int, told: Told) -> Figures:
        order.append(f"{name}{number}")
        told()
        return {"failed": 0}

    arms = {name: partial(arm, name) for name in "ab"}
    runs = asyncio.run(compare.in_turn(arms, 2, 1))
    assert order == ["a0", "b0", "a1", "b1"]
    assert {name: len(rounds) for name, rounds in runs.items()} == {"a": 2, "b": 2}


def test_both_tables_name_the_arms_and_the_rows_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    runs = {"one": [{"ms": 2.0, "failed": 0}], "two": [{"ms": 3.0, "failed": 7}]}
    compare.show("A title", runs, {"ms": "answer, ms", "gone": "never measured"})
    shown = capsys.readouterr().out
    assert all(words in shown for words in ("A title", "Ratio to one", "two", "answer", "1.5", "7"))
    assert "never measured" not in shown


def test_a_failed_request_is_an_error_with_its_words() -> None:
    compare.judge({"a": [{"failed": 0}]})
    runs: Runs = {"a": [{"failed": 0}], "b": [{"failed": 0}, {"failed": 2, "errors": {"status 503": 2}}]}
    with pytest.raises(EngineError, match=r"^requests failed: 2 of b; b: status 503$"):
        compare.judge(runs)
