"""Tables that fit a terminal: nothing is cut at its right edge, and what is too long for its height is counted.

Owns: which tables, how many of their rows and which of their columns there is room for.
Never: knows what a table is about.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from infra.cli import console

GAP = 2  # between two columns
LEAST_ROWS = 4  # a table that has no room for so many makes the last ones be left out
Cell = str | Text


@dataclass(frozen=True, slots=True)
class Part:
    """A table and its rows. Those of its `headings` that are in `right` hold numbers, and neither they nor those in
    `firm` are ever broken. Where it is too wide, the columns in `spare` are left out, first ones first. `unknown` more
    rows exist that nobody has told."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    right: tuple[str, ...] = ()
    firm: tuple[str, ...] = ()
    unknown: int = 0
    spare: tuple[str, ...] = ()

    def within(self, width: int) -> "Part":
        """Without as few of the spare columns as make it at most `width` letters wide, or without all of them."""
        part = self
        for heading in self.spare:
            if part.width <= width:
                break
            part = part._without(heading)
        return part

    @property
    def width(self) -> int:
        """Letters of a line in which nothing is broken."""
        columns = zip(self.headings, *self.rows, strict=True)
        return sum(GAP + max(cell_len(str(cell)) for cell in column) for column in columns) - GAP

    def _without(self, heading: str) -> "Part":
        at = self.headings.index(heading)
        rows = [row[:at] + row[at + 1 :] for row in self.rows]
        return replace(self, headings=self.headings[:at] + self.headings[at + 1 :], rows=rows)

    def shown(self, most: int) -> RenderableType:
        """The first `most` rows, and how many more there are."""
        table = console.grid(*self.headings, right=self.right, whole=self.headings, firm=self.right + self.firm)
        for row in self.rows[:most]:
            table.add_row(*row)
        more = len(self.rows) - min(most, len(self.rows)) + self.unknown
        return Group(table, Text(f"... {more} more", style="dim")) if more else table


@dataclass(frozen=True, slots=True)
class Whole:
    """Words and tables, as long as they are."""

    words: Text
    parts: Sequence[Part]

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        yield self.words
        for part in self.parts:
            yield Text("")
            yield part.shown(len(part.rows))


@dataclass(frozen=True, slots=True)
class Fitted:
    """The same within the height of the terminal: the words, and what there is room for of the parts, first ones
    first."""

    words: Text
    parts: Sequence[Part]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.update(no_wrap=False, overflow="fold", height=None)

        def lines_of(shown: RenderableType) -> list[list[Segment]]:
            return console.render_lines(shown, free, pad=False)

        lines = lines_of(self.words)
        room = (options.height or console.height) - len(lines)
        parts = [part.within(options.max_width) for part in self.parts]
        rows = share(parts, room, lambda part, most: len(lines_of(part.shown(most))))
        for part, most in zip(parts, rows, strict=False):
            lines += [[], *lines_of(part.shown(most))]
        left_out = len(parts) - len(rows)
        if left_out:
            lines += lines_of(Text(f"... {left_out} more table{'' if left_out == 1 else 's'}", style="dim"))
        for line in lines:
            yield from line
            yield Segment.line()


def share(parts: Sequence[Part], room: int, height: Callable[[Part, int], int]) -> list[int]:
    """How many rows of each part fit into `room` lines; of the last parts, none. `height` tells lines of so many rows.

    One line goes between two parts, and one to the number of those that are left out.
    """
    wanted = [len(part.rows) for part in parts]

    def fits(rows: list[int]) -> bool:
        used = sum(1 + height(part, most) for part, most in zip(parts, rows, strict=False))
        return used + (len(rows) < len(parts)) <= room

    if fits(wanted):
        return wanted
    rows = [min(LEAST_ROWS, most) for most in wanted]
    while rows and not fits(rows):
        if len(rows) > 1 or rows[0] <= 1:
            rows.pop()
        else:
            rows[0] -= 1
    for number in range(len(rows)):
        while rows[number] < wanted[number] and fits([*rows[:number], rows[number] + 1, *rows[number + 1 :]]):
            rows[number] += 1
    return rows
