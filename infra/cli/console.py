"""Where the command line writes, and how plain or coloured that is.

Owns: the two consoles, the words of numbers (sizes, counts), the one line of an error.
Never: decides what is said.

Rich leaves colours and control codes out by itself when the stream is no terminal or NO_COLOR is set. Its markup and
emoji codes are off everywhere: agents, workers and engines name themselves, and `[/x]` is a name like any other.
"""

from rich.console import Console, JustifyMethod, OverflowMethod, RenderableType
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 200  # off a terminal nobody wraps by hand: a cell must not be cut there

out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
err = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, stderr=True)


def say(text: str, style: str | None = None) -> None:
    """One line to standard output; never wrapped."""
    out.print(text, style=style)


def prose(text: str, style: str | None = None) -> None:
    """One line to standard output, broken between words where a terminal is too narrow for it."""
    out.print(text, style=style, soft_wrap=not out.is_terminal)


def warn(text: str) -> None:
    """One line to standard error that begins with `warning:`."""
    _complain("warning:", "bold yellow", text)


def fail(text: str) -> None:
    """One line to standard error that begins with `error:`."""
    _complain("error:", "bold red", " ".join(text.split()))


def show(renderable: RenderableType) -> None:
    """A table: fitted to the terminal, or plain and as wide as it likes elsewhere."""
    if out.is_terminal:
        out.print(renderable, soft_wrap=False)
    else:
        plain = Console(width=PLAIN_WIDTH, highlight=False, markup=False, emoji=False, no_color=True)
        plain.print(renderable, soft_wrap=False)


def grid(*headings: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = (), firm: tuple[str, ...] = ()) -> Table:
    """A table without lines, its columns named by `headings`, those in `right` flush right.

    Where a terminal is too narrow for a word it is cut, but broken in the columns of `whole`. Those of `firm` keep
    their width as long as others can give way.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        overflow: OverflowMethod = "fold" if heading in whole else "ellipsis"
        justify: JustifyMethod = "right" if heading in right else "left"
        table.add_column(heading, justify=justify, overflow=overflow, no_wrap=heading in firm)
    return table


def size(number_of_bytes: float) -> str:
    """Bytes in the unit a person would use: `512 MiB`, `23.4 GiB`."""
    gib = number_of_bytes / 2**30
    return f"{gib:.1f} GiB" if gib >= 1 else f"{number_of_bytes / 2**20:.0f} MiB"


def _complain(word: str, style: str, text: str) -> None:
    err.print(Text.assemble((word, style), " ", text), soft_wrap=not err.is_terminal)
