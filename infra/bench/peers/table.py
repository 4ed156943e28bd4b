"""The one table of all sides, what stands below it, and where Corral is ahead and where not.

Owns: the rows, their words, which direction is better, and whom Corral must be ahead of in each.
Never: measures.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from infra import machine
from infra.bench import report
from infra.bench.peers.one_engine import Found
from infra.bench.peers.several import WHOLE
from infra.bench.peers.sides import CORRAL, LLAMA_SERVER
from infra.bench.report import Figures

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Line:
    """One row: figure `name` of the measurement `row`. `best` is "low", "high" or a word that is best."""

    row: str
    name: str
    words: str
    best: str


LINES = (
    Line("first", "added_p50_ms", "added to the first token, 80 KB, p50, ms", "low"),
    Line("first", "added_p95_ms", "added to the first token, 80 KB, p95, ms", "low"),
    Line("first", "first_p50_ms", "  first token itself, p50, ms", ""),
    Line("small", "added_p50_ms", "added to the first token, small, p50, ms", "low"),
    Line("small", "added_p95_ms", "added to the first token, small, p95, ms", "low"),
    Line("small", "first_p50_ms", "  first token itself, p50, ms", ""),
    Line("rate", "per_s", "requests a second, 16 clients", "high"),
    Line("rate", "of_engine", "  of the engine's", ""),
    Line("agents", "later_ttft_p50_ms", "agents: TTFT p50 of later turns, ms", "low"),
    Line("agents", "prefilled", "agents: tokens prefilled", "low"),
    Line("agents", "later_ratio", "agents: later turns prefilled / minimum", "low"),
    Line("agents", "failed", "agents: failed requests", "low"),
    Line("agents", "wall_s", "agents: wall, s", "low"),
    Line("four", "mean_ms", "four at once, mean answer, ms", "low"),
    Line("four", "output_tokens", "  output tokens of each", ""),
    Line("kill", "answer", "engine killed in mid stream: the answer", WHOLE),
    Line("memory", "mb", "memory beside the engine, MiB", "low"),
)
# Equal is not behind: two sides may both find every token, and none can fail less than never.
MAY_BE_EQUAL = {"failed", "later_ratio", "answer"}
CLOSE = 0.01  # of a figure that may be equal
AHEAD_OF = {"LiteLLM": None, "claude-code-router": None, "vllm-router": "agents"}  # None: on every row


def header() -> dict[str, str]:
    """Date and machine in words."""
    cards = ", ".join(machine.card_names()) or "no GPU"
    return {"date": datetime.now(UTC).date().isoformat(), "machine": f"{machine.cores()} CPU cores, {cards}"}


def show(title: str, names: Sequence[str], found: Mapping[str, Found]) -> None:
    """The table, and below it why a side has no figure."""
    table = report.by_name(names, title)
    for line in LINES:
        if line.row in found:
            table.add_row(line.words, *(cell(found, line, name) for name in names))
    console = report.paper()
    console.print(table)
    for note in notes(names, found):
        console.print(note, markup=False, highlight=False)


def cell(found: Mapping[str, Found], line: Line, name: str) -> str:
    """A figure in few characters, or `-`."""
    value = found.get(line.row, {}).get(name, {}).get(line.name)
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def notes(names: Sequence[str], found: Mapping[str, Found]) -> list[str]:
    """Why a side could not do a row, or what it needed for it, one line each."""
    pairs = [(row, name, sides.get(name, {})) for row, sides in found.items() for name in names]
    return [note for row, name, side in pairs for note in _notes(f"- {name}, {row}:", side)]


def _notes(start: str, side: Figures) -> Iterator[str]:
    if "error" in side:
        yield f"{start} {side['error']}"
    if side.get("repeated"):
        yield f"{start} {side['repeated']} requests failed and were asked again"
    if side.get("errors"):
        yield f"{start} {next(iter(side['errors']))}"


def standing(found: Mapping[str, Found]) -> list[str]:
    """One sentence for each row on which Corral is not ahead of whom it must be ahead, and for each of these who is not
    there to be compared; one if there is none."""
    return [*_behind(found), *_absent(found)] or ["Corral is ahead on every row that it must be ahead on."]


def _absent(found: Mapping[str, Found]) -> Iterator[str]:
    for other, only in AHEAD_OF.items():
        rows = [row for row, sides in found.items() if only in (None, row) and other not in sides]
        if rows:
            yield f"{other} did not run, so nothing is said of it: {', '.join(rows)}"


def _behind(found: Mapping[str, Found]) -> Iterator[str]:
    for line in LINES:
        if line.row not in found or not line.best:
            continue
        for other, only in AHEAD_OF.items():
            if only in (None, line.row) and not ahead(found, line, other):
                ours, theirs = cell(found, line, CORRAL), cell(found, line, other)
                yield f"Corral is not ahead of {other}: {line.words}: {ours} against {theirs}"


def ahead(found: Mapping[str, Found], line: Line, other: str) -> bool:
    """Whether Corral's figure is better; a side without one counts as behind, unless Corral has none either."""
    sides = found[line.row]
    ours, theirs = (sides.get(name, {}).get(line.name) for name in (CORRAL, other))
    if ours is None or theirs is None:
        return ours is not None
    if isinstance(ours, str):
        return ours == line.best
    if line.name in MAY_BE_EQUAL and ours <= theirs * (1 + CLOSE):
        return True
    return bool(ours < theirs if line.best == "low" else ours > theirs)


def order(chosen: Sequence[str]) -> list[str]:
    """The columns: Corral, the peers, the engine."""
    return [CORRAL, *(name for name in chosen if name not in (CORRAL, LLAMA_SERVER)), LLAMA_SERVER]
