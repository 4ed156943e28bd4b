"""A bar is for eyes, lines are for files."""

from io import StringIO

import pytest
from rich.console import Console

from infra.bench import progress

pytestmark = pytest.mark.unit


def written(*, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TERM", "xterm")
    console = Console(file=StringIO(), force_terminal=terminal, width=100, color_system=None)
    with progress.work("round 1/2, one", 50, console) as told:
        for _ in range(50):
            told()
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_off_a_terminal_a_short_piece_of_work_is_one_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 3600.0)
    (line,) = written(terminal=False, monkeypatch=monkeypatch).splitlines()
    assert line.startswith("round 1/2, one: 50 of 50 requests, ")


def test_a_long_one_says_again_and_again_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    lines = written(terminal=False, monkeypatch=monkeypatch).splitlines()
    assert len(lines) == 50
    assert lines[9].startswith("round 1/2, one: 10 of 50 requests")


def test_on_a_terminal_it_is_a_bar_that_is_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = written(terminal=True, monkeypatch=monkeypatch)
    assert "50/50" in shown
    assert "━" in shown
    assert shown.rstrip("\r\n").endswith("\x1b[2K")


def test_off_a_terminal_each_part_is_one_line() -> None:
    console = Console(file=StringIO(), force_terminal=False, width=100)
    with progress.telling(console) as told:
        for text in ("starting", "first token: round 1 of 2", "first token: round 2 of 2", "memory"):
            told(text)
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().splitlines() == ["starting", "first token", "memory"]
