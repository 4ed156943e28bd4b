"""The engine ladder keeps what helped beyond the noise, and says it in lines that Corral takes."""

import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra import engine_options
from infra.bench.engine import Step, best_of
from infra.bench.ladder import Ladder, Measured, Setting, chosen, judge, replaced, rungs
from infra.config import Settings
from infra.errors import ConfigError
from workers.llama.command import engine_arguments

pytestmark = pytest.mark.unit

BASE = Measured(prefill_per_s=1000, decode_per_s=50, decode_all_per_s=100, memory_bytes=1000)
ALL = [setting for rung in rungs(8, 7).values() for setting in rung]


def times(factor: float, memory: float = 1.0) -> Measured:
    """The base line, so many times as fast."""
    return replace(
        BASE,
        prefill_per_s=BASE.prefill_per_s * factor,
        decode_all_per_s=BASE.decode_all_per_s * factor,
        memory_bytes=round(BASE.memory_bytes * memory),
    )


@pytest.mark.parametrize(
    ("tried", "helped", "why"),
    [
        (times(1.2), True, "faster"),
        (times(0.8), False, "slower"),
        (times(1.01), False, "within the noise"),
        (times(1.0, memory=0.6), True, "less memory"),
        (times(0.8, memory=0.6), False, "slower"),
    ],
)
def test_a_setting_is_kept_when_it_helped(tried: Measured, helped: bool, why: str) -> None:
    verdict = judge([BASE, BASE], [tried, tried])
    assert (verdict.helped, verdict.why) == (helped, why)


def test_what_helps_by_less_than_the_base_line_differs_from_itself_did_not_help() -> None:
    verdict = judge([BASE, times(1.3)], [times(1.2), times(1.2)])
    assert verdict.noise > 0.2
    assert not verdict.helped


def test_much_noise_does_not_pass_for_memory_at_no_cost() -> None:
    verdict = judge([BASE, times(1.5)], [times(0.9, memory=0.6), times(1.35, memory=0.6)])
    assert (verdict.helped, verdict.why) == (False, "less memory, maybe slower")


@given(st.floats(0.2, 5), st.floats(0.2, 5))
def test_an_engine_never_helps_over_itself(one: float, other: float) -> None:
    assert not judge([times(one), times(other)], [times(one), times(other)]).helped


def test_the_best_of_a_rung_is_taken() -> None:
    steps = [Step(Setting(name, {}), verdict=judge([BASE], [times(by)])) for name, by in (("a", 1.1), ("b", 1.5))]
    best = best_of([*steps, Step(Setting("c", {}), problem="not known")])
    assert best is steps[1]
    assert best_of([]) is None


def test_every_line_is_one_that_corral_takes() -> None:
    for setting in ALL:
        lines = tomllib.loads("\n".join(Ladder([setting]).lines(())))
        settings = Settings(**lines)
        assert settings.threads == setting.threads
        engine_arguments(settings.engine_args)
        engine_options.read(settings.engine_args)


def test_given_flags_with_quotes_and_backslashes_come_back_as_they_were() -> None:
    given = ["-ot", r"\.ffn_.*_exps\.=CPU", "--override-kv", 'a="b"']
    (line,) = Ladder([Setting("batch", {"-b": "512"})]).lines(given)
    assert engine_options.split(tomllib.loads(line)["engine_args"]) == [*given, "-b", "512"]


def test_given_flags_stay_and_those_tried_take_the_place_of_the_same_ones() -> None:
    ladder = Ladder([Setting("threads", {"-t": "4", "-tb": "4"}, 4), Setting("batch", {"-b": "512"})])
    assert ladder.lines(["-ngl", "99", "--swa-full", "-b", "64"]) == [
        "threads = 4",
        'engine_args = "-ngl 99 --swa-full -b 512"',
    ]
    assert Ladder().lines(["-ngl", "99"]) == []
    assert replaced(["-t", "1", "-c", "5"], {"-t": "2"}) == ["-c", "5", "-t", "2"]


def test_rungs_are_chosen_by_name_and_an_unknown_one_is_told() -> None:
    assert list(chosen("kv, flash", 2, 1)) == ["flash", "kv"]
    assert list(chosen("", 2, 1)) == list(rungs(2, 1))
    with pytest.raises(ConfigError, match="--rungs heat: must be of threads, flash"):
        chosen("heat", 2, 1)
