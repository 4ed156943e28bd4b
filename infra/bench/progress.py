"""How far a bench is: a bar on a terminal, a few plain lines anywhere else.

Owns: the bar, how seldom a line is written, and telling what a bench of several parts is at.
Never: writes to standard output, which holds the figures.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

EVERY_S = 10.0  # between two lines where there is no terminal

Told = Callable[[], None]


@contextmanager
def work(title: str, total: int, console: Console | None = None) -> Iterator[Told]:
    """Inside the block, call what is given once for each of `total` requests that has ended."""
    shown = console or _stderr()
    with _bar(title, total, shown) if shown.is_terminal else _lines(title, total, shown) as told:
        yield told


@contextmanager
def telling(console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Inside the block, call what is given with `part: what it is at`: one line that changes on a terminal, else a line
    for each part."""
    shown = console or _stderr()
    last = ""
    with shown.status("") as status:

        def told(text: str) -> None:
            nonlocal last
            part = text.partition(":")[0]
            if shown.is_terminal:
                status.update(text)
            elif part != last:
                shown.print(part)
            last = part

        yield told


@contextmanager
def _bar(title: str, total: int, console: Console) -> Iterator[Told]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)


@contextmanager
def _lines(title: str, total: int, console: Console) -> Iterator[Told]:
    done, began_s = 0, monotonic()
    next_s = began_s + EVERY_S

    def told() -> None:
        nonlocal done, next_s
        done += 1
        now_s = monotonic()
        if done == total or now_s >= next_s:
            next_s = now_s + EVERY_S
            console.print(f"{title}: {done} of {total} requests, {now_s - began_s:.1f} s")

    yield told


def _stderr() -> Console:
    return Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)
