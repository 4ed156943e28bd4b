"""Tables within the height and width of a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from infra.cli.fitted import Fitted, Part, share

pytestmark = pytest.mark.unit

parts_of = st.lists(st.integers(0, 60).map(lambda rows: Part(("A",), [(f"row {n}",) for n in range(rows)])), max_size=6)


def height(part: Part, most: int) -> int:
    """A heading, the rows, and a line for the others."""
    return 1 + most + (most < len(part.rows))


@given(parts_of, st.integers(0, 100))
def test_no_more_is_shown_than_there_is_room_for(parts: list[Part], room: int) -> None:
    rows = share(parts, room, height)
    assert all(most <= len(part.rows) for most, part in zip(rows, parts, strict=False))
    used = sum(1 + height(part, most) for part, most in zip(parts, rows, strict=False)) + (len(rows) < len(parts))
    assert used <= max(room, 1)


@given(parts_of)
def test_with_room_for_all_all_is_shown(parts: list[Part]) -> None:
    room = sum(1 + height(part, len(part.rows)) for part in parts)
    assert share(parts, room, height) == [len(part.rows) for part in parts]


def test_the_first_parts_come_first() -> None:
    parts = [Part(("A",), [("x",)] * count) for count in (2, 12, 9, 9)]
    assert share(parts, 24, height) == [2, 9, 4]
    assert share(parts, 8, height) == [2]


@pytest.mark.parametrize(("columns", "height"), [(80, 10), (60, 10), (80, 14), (60, 14)])
def test_words_are_wrapped_and_what_has_no_room_is_counted(columns: int, height: int) -> None:
    words = Text("word " * 40 + "end")
    shown = Fitted(words, [Part(("Table",), [(f"row-{n}",) for n in range(30)]), Part(("Other",), [("x",)])])
    console = Console(width=columns, height=height, no_color=True, soft_wrap=True)
    with console.capture() as capture:
        console.print(shown)
    lines = capture.get().splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= columns
    assert " ".join(capture.get().split()).startswith(" ".join(words.plain.split()))
    rows = [line.rstrip() for line in lines if line.startswith("row-")]
    assert rows == [f"row-{n}" for n in range(len(rows))]
    assert f"... {30 - len(rows)} more" in lines
    assert ("... 1 more table" in lines) is (height == 10)


@given(st.integers(1, 60))
def test_a_narrow_terminal_costs_spare_columns_and_breaks_no_word(width: int) -> None:
    rows = [("claude", "reads", "1.5 s", "30000"), ("claude-of-anna", "writes", "12 ms", "7")]
    part = Part(("Agent", "Now", "For", "Prompt"), rows, right=("For", "Prompt"), spare=("Prompt", "For"))
    narrowed = part.within(width)
    assert narrowed.headings in (part.headings, ("Agent", "Now", "For"), ("Agent", "Now"))
    assert narrowed.width <= width or narrowed.headings == ("Agent", "Now")
    console = Console(width=part.width, height=30, no_color=True)
    with console.capture() as capture:
        console.print(narrowed.shown(2))
    lines = capture.get().splitlines()
    assert [line.split()[0] for line in lines] == ["Agent", "claude", "claude-of-anna"]
    assert max(map(len, lines)) == narrowed.width


def test_a_column_is_left_out_only_where_it_has_no_room() -> None:
    part = Part(("Agent", "For"), [("anna", "12 ms")], right=("For",), spare=("For",))
    assert part.within(part.width) == part
    assert part.within(part.width - 1).headings == ("Agent",)
