"""Percentiles are values that were measured, and a figure never stands without its command."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.bench import report

pytestmark = pytest.mark.unit


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1))
def test_a_percentile_is_a_measured_value_that_its_share_does_not_exceed(values: list[float], share: float) -> None:
    found = report.percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6


def test_the_percentiles_of_a_hundred_values() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [report.percentile(values, share) for share in (0.5, 0.95, 0.99, 1)] == [50, 95, 99, 100]


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        report.percentile([], 0.5)


def test_seconds_are_told_in_milliseconds() -> None:
    assert report.spread_ms([0.001, 0.002, 0.003]) == {"mean": 2.0, "p50": 2.0, "p95": 3.0, "p99": 3.0}


def test_the_file_holds_the_command_beside_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["overhead", "--model", "a model.gguf"])
    command = report.command_line("infra.bench.overhead")
    report.save(tmp_path / "figures.json", command, {"first": {"p50": 1.0}})
    saved = json.loads((tmp_path / "figures.json").read_text())
    assert saved == {"command": "python -m infra.bench.overhead --model 'a model.gguf'", "first": {"p50": 1.0}}


def test_no_key_and_no_password_is_printed_or_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ["--key", "k-1", "--engine-key=k-2", "--redis-url", "redis://:k-3@h:1/0", "--compare", "a=http://u:k-4@h"]
    monkeypatch.setattr(sys, "argv", ["overhead", *secrets, "--url", "http://127.0.0.1:8000", "--repeat", "2"])
    command = report.command_line("infra.bench.overhead")
    assert "k-" not in command.replace("--engine-key", "")
    assert command.endswith("--url http://127.0.0.1:8000 --repeat 2")
    assert "redis://:********@h:1/0" in command
