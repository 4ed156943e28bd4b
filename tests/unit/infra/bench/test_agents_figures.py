"""The minima and ratios mean what their definition says."""

import re
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.bench import agents_report, report
from infra.bench.agents_figures import figures, later_minimum, medians, minimum, shared_minimum
from infra.bench.agents_session import Kind
from tests.unit.infra.bench.talks import shape, turn

pytestmark = pytest.mark.unit

grown = st.lists(st.tuples(st.integers(1, 500), st.integers(0, 50)), min_size=1, max_size=8)


@given(first=st.integers(1, 20_000), growth=grown)
def test_the_minimum_prefills_each_token_of_a_conversation_once_and_none_that_was_generated(
    first: int, growth: list[tuple[int, int]]
) -> None:
    prompts = [first]
    for (_, output), (new, _) in pairwise(growth):
        prompts.append(prompts[-1] + output + new)
    turns = [turn(number, prompts[number], output=output) for number, (_, output) in enumerate(growth)]
    generated = sum(output for _, output in growth[:-1])
    assert minimum(turns) == prompts[-1] - generated
    assert later_minimum(turns) == minimum(turns) - first


def test_an_engine_always_processes_one_token() -> None:
    assert minimum([turn(0, 100, output=10), turn(1, 90)]) == 101


def test_conversations_are_told_apart_and_turns_put_in_order() -> None:
    turns = [turn(1, 130, output=5), turn(0, 1000, conversation="b"), turn(0, 100, output=10)]
    assert minimum(turns) == 100 + 20 + 1000


def test_with_a_shared_base_each_engine_prefills_it_once() -> None:
    agents = [turn(0, 1100, conversation=name) for name in "abcde"]
    helpers = [turn(0, 300, conversation=f"h{name}", kind=Kind.SUBAGENT) for name in "xyz"]
    bases = {Kind.MAIN: 1000, Kind.SUBAGENT: 200}
    assert shared_minimum([*agents, *helpers], bases, 2) == (2 * 1000 + 5 * 100) + (2 * 200 + 3 * 100)


def test_fewer_conversations_than_engines_share_nothing() -> None:
    assert shared_minimum([turn(0, 1100)], {Kind.MAIN: 1000}, 2) == 1100


def test_an_arm_s_figures() -> None:
    turns = [
        turn(0, 1000, output=10, first_s=0.5),
        turn(1, 1110, cached=1009, output=10, first_s=0.1),
        turn(2, 1220, cached=560, first_s=0.3, engine="w2"),
        turn(0, 50, conversation="s", kind=Kind.SIDE, first_s=0.2),
        turn(3, 0, error="status 529", first_s=9),
    ]
    found = figures(turns, 3.04, {Kind.MAIN: 900})
    assert found["prefilled"] == 1000 + 101 + 660 + 50
    assert found["minimum"] == 1000 + 100 + 100 + 50
    assert found["ratio"] == round(1811 / 1250, 3)
    assert (found["later_prefilled"], found["later_minimum"]) == (761, 200)
    assert (found["first_ttft_p50_ms"], found["later_ttft_p50_ms"], found["later_ttft_p90_ms"]) == (500, 100, 300)
    assert found["reuse_pct"] == round(100 * 1569 / 2330, 2)
    assert found["of_reusable_pct"] == round(100 * 1569 / (1010 + 1120), 2)
    assert found["side_first_ttft_p50_ms"] == 200
    assert (found["requests"], found["failed"], found["moves"], found["wall_s"]) == (5, 1, 1, 3.0)
    assert found["errors"] == {"status 529": 1}


def test_a_perfect_cache_is_one_hundred_percent_of_reusable() -> None:
    turns = [turn(0, 1000, output=10), turn(1, 1110, cached=1010)]
    assert figures(turns, 1, {})["of_reusable_pct"] == 100


def test_an_arm_in_which_all_failed_still_has_figures() -> None:
    assert figures([turn(0, 0, error="status 500")], 1, {})["failed"] == 1


def test_repeats_give_a_median_with_its_spread() -> None:
    found = medians([{"x": 3, "errors": {"e": 1}}, {"x": 1}, {"x": 2, "y": 5}])
    assert found == {"x": [2, 1, 3], "y": [5, 5, 5]}
    assert report.spread(found["x"]) == "2 (1-3)"
    assert report.spread(found["y"]) == "5"


def test_a_request_that_failed_in_one_of_three_rounds_is_seen_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    fine, broken = figures([turn(0, 10)], 1, {}), figures([turn(0, 0, error="status 500")], 1, {})
    rounds = [fine, broken, fine]
    agents_report.show(shape().life, {"corral": rounds})
    assert re.search(r"of these failed\W+1\W", capsys.readouterr().out)
    assert agents_report.total(rounds, "requests") == 3


def test_the_table_and_the_file_hold_every_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {name: [figures([turn(0, 12_345)], 1, {})] for name in ("corral", "pinned")}
    agents_report.show(shape().life, runs)
    assert capsys.readouterr().out.count("12.3k") >= 2
    file = tmp_path / "figures.json"
    agents_report.save(file, "python -m x", "run", shape(), runs)
    saved = orjson.loads(file.read_bytes())
    assert saved["command"] == "python -m x"
    assert saved["arms"]["pinned"]["rounds"][0]["minimum"] == 12_345
    assert saved["ratios_to"]["arm"] == "corral"
    assert saved["ratios_to"]["median_least_most"]["pinned"]["prefilled"] == [1.0, 1.0, 1.0]


def test_times_to_first_token_are_told_turn_by_turn() -> None:
    main = [turn(number, 10, first_s=0.1 * (number + 1), conversation=name) for name in "ab" for number in range(2)]
    side = turn(0, 5, conversation="s", kind=Kind.SIDE)
    assert figures([*main, side], 1, {})["first_ms_of_turns"] == [[100.0, 100.0], [200.0, 200.0]]
