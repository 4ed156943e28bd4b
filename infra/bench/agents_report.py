"""The table and the JSON of a comparison.

Owns: which figures stand in the table, in which words.
Never: computes a figure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from infra.bench import compare, report
from infra.bench.agents_figures import medians
from infra.bench.agents_session import Shape
from infra.bench.report import Figures

ROWS = {
    "first_ttft_p50_ms": "first turn, TTFT p50, ms",
    "later_ttft_p50_ms": "later turns, TTFT p50, ms",
    "later_ttft_p90_ms": "later turns, TTFT p90, ms",
    "prefilled": "tokens prefilled",
    "minimum": "  a cache per conversation would",
    "ratio": "  prefilled / minimum",
    "first_prefilled": "  by first turns of main lines",
    "later_prefilled": "tokens prefilled by later turns",
    "later_minimum": "  a cache per conversation would",
    "later_ratio": "  prefilled / minimum",
    "shared_minimum": "minimum, base once an engine",
    "shared_ratio": "  prefilled / that minimum",
    "reuse_pct": "main lines, reused of prompt, %",
    "of_reusable_pct": "main lines, reused of reusable, %",
    "subagent_first_ttft_p50_ms": "subagents, first TTFT p50, ms",
    "subagent_later_ttft_p50_ms": "subagents, later TTFT p50, ms",
    "subagent_of_reusable_pct": "subagents, reused of reusable, %",
    "side_first_ttft_p50_ms": "side calls, TTFT p50, ms",
    "side_first_prefilled": "side calls, tokens prefilled",
    "moves": "turns on another engine than before",
    "wall_s": "wall, s",
}
COMPARED = ("first_ttft_p50_ms", "later_ttft_p50_ms", "later_ttft_p90_ms", "prefilled", "later_prefilled", "wall_s")
TOTALS = {"requests": "requests of all rounds", "failed": "  of these failed"}


def show(about: str, runs: Mapping[str, Sequence[Figures]]) -> None:
    """One column an arm: the median of its rounds, with the least and the most where they differ. Requests are summed,
    so that one that failed in a single round is seen."""
    found = {name: medians(rounds) for name, rounds in runs.items()}
    print(about)
    table = report.by_name(found)
    for row, words in ROWS.items():
        if any(row in arm for arm in found.values()):
            table.add_row(words, *(report.spread(arm[row]) if row in arm else "" for arm in found.values()))
    for row, words in TOTALS.items():
        table.add_row(words, *(str(total(rounds, row)) for rounds in runs.values()))
    report.paper().print(table)
    compare.show_ratios(runs, {row: ROWS[row] for row in COMPARED})


def total(rounds: Sequence[Figures], name: str) -> int:
    """The sum of a count over all rounds."""
    return sum(run[name] for run in rounds)


def save(path: Path | None, command: str, run_id: str, shape: Shape, runs: Mapping[str, Sequence[Figures]]) -> None:
    """Write every round, the medians and the ratios to `path`, if one was given."""
    arms = {name: {"median_least_most": medians(rounds), "rounds": list(rounds)} for name, rounds in runs.items()}
    compared = {name: found for name, found in compare.as_json(runs).items() if name != "arms"}
    report.save(path, command, {"run": run_id, "shape": asdict(shape), "arms": arms, **compared})
