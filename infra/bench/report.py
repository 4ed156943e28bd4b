"""Figures as a table and as JSON.

Owns: medians and percentiles, how a figure is written, and that the command line stands beside it, its keys hidden.
Never: measures.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from infra.cli.config_command import MASK

Figures = dict[str, Any]
WIDTH = 132
KEYS = ("--key", "--engine-key")
PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]*@")  # of an address


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` (0..1) of all do not exceed. Raises ValueError without values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def spread_ms(seconds: Sequence[float]) -> Figures:
    """mean, p50, p95 and p99 of `seconds`, in milliseconds with two decimals."""
    figures = {"mean": fmean(seconds)} | {f"p{n}": percentile(seconds, n / 100) for n in (50, 95, 99)}
    return {name: round(value * 1000, 2) for name, value in figures.items()}


def paper() -> Console:
    """Standard output for wide tables: as wide as a terminal is, and wide enough for all anywhere else."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=WIDTH, highlight=False)


def spread(found: Sequence[float]) -> str:
    """[median, least, most] in few characters."""
    middle, least, most = map(_number, found)
    return middle if least == most else f"{middle} ({least}-{most})"


def command_line(module: str) -> str:
    """The command that was given, as one could give it again but for its keys and passwords."""
    return shlex.join(["python", "-m", module, *_without_secrets(sys.argv[1:])])


def show(title: str, rows: Sequence[tuple[str, Any]]) -> None:
    """One small table of names and values on standard output."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows:
        table.add_row(name, _written(value))
    Console(width=110).print(table)


def by_name(names: Iterable[str], title: str | None = None) -> Table:
    """A table without rows yet: words first, then a column of figures for each name."""
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    return table


def save(path: Path | None, command: str, figures: Figures) -> None:
    """Write `figures` with their command to `path`, if one was given."""
    if path is not None:
        path.write_text(json.dumps({"command": command, **figures}, indent=2) + "\n", encoding="utf-8")


def _without_secrets(arguments: Sequence[str]) -> Iterator[str]:
    for before, word in zip(("", *arguments), arguments, strict=False):
        option, equals, _ = word.partition("=")
        if before in KEYS:
            yield MASK
        elif option in KEYS and equals:
            yield f"{option}={MASK}"
        else:
            yield PASSWORD.sub(rf"\1:{MASK}@", word)


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{key} {_written(item)}" for key, item in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    """Four figures are enough for a table; the JSON has all."""
    if value >= 10_000:
        return f"{value / 1000:.1f}k"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
