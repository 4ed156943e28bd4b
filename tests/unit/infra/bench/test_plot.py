"""The picture of the turns is a PNG or an SVG that names its arms, and a missing library is said before a run."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from infra.bench import plot
from infra.errors import ConfigError

pytestmark = pytest.mark.unit

RUNS = {
    "corral": [{"first_ms_of_turns": [[900.0, 800.0], [90.0, 110.0], [95.0]]}] * 2,
    "round robin": [{"first_ms_of_turns": [[910.0], [400.0], [440.0]]}, {"first_ms_of_turns": [[900.0], [], []]}],
}
PNG = b"\x89PNG\r\n\x1a\n"


def test_both_files_are_pictures_with_the_arms_names_in_them(tmp_path: Path) -> None:
    png, svg = plot.draw(tmp_path / "turns", RUNS, "2 agents")
    assert png.read_bytes().startswith(PNG)
    assert (png.suffix, svg.suffix) == (".png", ".svg")
    assert all(name.encode() in png.read_bytes() for name in RUNS)
    words = " ".join(ElementTree.parse(svg).getroot().itertext())  # noqa: S314  # our own file
    assert all(name in words for name in (*RUNS, "Time to first token", "2 agents"))


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_suffix_asks_for_one(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"turns{suffix}"
    assert plot.draw(path, RUNS, "about") == [path]
    assert list(tmp_path.iterdir()) == [path]


def test_a_turn_s_times_of_all_rounds_are_one_median_with_the_middle_half() -> None:
    found = plot.lines({"a": [{"first_ms_of_turns": [[1.0, 2.0]]}, {"first_ms_of_turns": [[3.0, 4.0], [9.0]]}]})["a"]
    assert (found.turns, found.low, found.middle, found.high) == ([1, 2], [1.0, 9.0], [2.0, 9.0], [3.0, 9.0])


@pytest.mark.parametrize(
    ("ms", "words"), [(1040.0, "corral  1040 ms"), (61.44, "corral  61.4 ms"), (2345.0, "corral  2.35 s")]
)
def test_the_last_median_stands_beside_its_arm(tmp_path: Path, ms: float, words: str) -> None:
    (svg,) = plot.draw(tmp_path / "turns.svg", {"corral": [{"first_ms_of_turns": [[ms]]}]}, "about")
    assert words in " ".join(ElementTree.parse(svg).getroot().itertext())  # noqa: S314  # our own file


def test_an_arm_that_never_answered_is_not_drawn(tmp_path: Path) -> None:
    assert plot.draw(tmp_path / "turns", {"a": [{"first_ms_of_turns": []}]}, "about") == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["turns.pdf", "no-such-folder/turns.png"])
def test_where_nothing_can_be_drawn_is_said(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"^--plot "):
        plot.check(tmp_path / path)


def test_without_the_library_the_command_that_installs_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'corral\[plots\]'"):
        plot.check(tmp_path / "turns.png")


def test_it_is_loaded_by_nothing_else() -> None:
    assert "matplotlib" not in vars(plot)
