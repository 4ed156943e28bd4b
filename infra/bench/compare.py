"""Several arms in turn, A B A B, and how they compare round by round.

Owns: the order, the ratios and their spread, and the two tables.
Never: what an arm does in its round.

A ratio is taken inside one round, where both arms met the same machine; its spread is that of the rounds.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import median
from typing import Any

from infra.bench import progress, report
from infra.bench.progress import Told
from infra.bench.report import Figures
from infra.errors import EngineError

FAILED = "failed"
NO_RATIO = ("_tokens", "_pct")  # they say that the work was the same

Runs = Mapping[str, Sequence[Figures]]
Round = Callable[[int, Told], Awaitable[Figures]]


async def in_turn(arms: Mapping[str, Round], rounds: int, requests: int) -> dict[str, list[Figures]]:
    """Every arm's figures of each round. `requests` are those of one arm in one round."""
    runs: dict[str, list[Figures]] = {name: [] for name in arms}
    for number in range(rounds):
        for name, arm in arms.items():
            with progress.work(f"round {number + 1}/{rounds}, {name}", requests) as told:
                runs[name].append(await arm(number, told))
    return runs


def ratios(runs: Runs) -> dict[str, dict[str, list[float]]]:
    """arm -> figure -> [median, least, most] of its rounds' values over those of the first arm in the same round.

    The first arm, words, what only tells how much was done, and rounds where either value is missing or 0 are left out.
    """
    (_, base), *others = runs.items()
    found = {}
    for name, rounds in others:
        of_arm: dict[str, list[float]] = {}
        for figure in dict.fromkeys(figure for run in rounds for figure in run):
            values = [b[figure] / a[figure] for a, b in zip(base, rounds, strict=True) if _comparable(figure, a, b)]
            if values:
                of_arm[figure] = [round(value, 3) for value in (median(values), min(values), max(values))]
        found[name] = of_arm
    return found


def show(title: str, runs: Runs, rows: Mapping[str, str]) -> None:
    """The arms' figures as median (least-most) of their rounds, and the ratios, if there is something to compare."""
    table = report.by_name(runs)
    for figure, words in rows.items():
        values = [[run[figure] for run in rounds if figure in run] for rounds in runs.values()]
        if any(values):
            spreads = ([median(found), min(found), max(found)] if found else [] for found in values)
            table.add_row(words, *(report.spread(found) if found else "-" for found in spreads))
    failed = [sum(run[FAILED] for run in rounds) for rounds in runs.values()]
    table.add_row("failed requests, all rounds", *map(str, failed))
    paper = report.paper()
    paper.print(title, style="bold", markup=False)
    paper.print(table)
    show_ratios(runs, rows)


def show_ratios(runs: Runs, rows: Mapping[str, str]) -> None:
    """One column an arm: its figures over the first arm's, median (least-most) over the rounds."""
    if len(runs) < 2:
        return
    first, found = next(iter(runs)), ratios(runs)
    table = report.by_name(found)
    for figure, words in rows.items():
        if any(figure in of_arm for of_arm in found.values()):
            cells = (report.spread(of_arm[figure]) if figure in of_arm else "-" for of_arm in found.values())
            table.add_row(words.removesuffix(", ms").removesuffix(", s"), *cells)
    paper = report.paper()
    words = f"Ratio to {first}, of {len(runs[first])} rounds: median (least-most)"
    paper.print(words, style="bold", markup=False)
    paper.print(table)


def as_json(runs: Runs) -> Figures:
    """All rounds, and the ratios."""
    found: Figures = {"arms": {name: list(rounds) for name, rounds in runs.items()}}
    if len(runs) > 1:
        found["ratios_to"] = {"arm": next(iter(runs)), "median_least_most": ratios(runs)}
    return found


def judge(runs: Runs) -> None:
    """Raises EngineError when a request failed in any round, with its arm and the first error."""
    failed = {name: sum(run[FAILED] for run in rounds) for name, rounds in runs.items()}
    if any(failed.values()):
        words = ", ".join(f"{count} of {name}" for name, count in failed.items() if count)
        firsts = [
            f"{name}: {error}" for name, rounds in runs.items() for run in rounds for error in run.get("errors", ())
        ]
        raise EngineError(f"requests failed: {words}; {firsts[0] if firsts else 'no error was told'}")


def _comparable(figure: str, one: Figures, other: Figures) -> bool:
    return (
        figure != FAILED
        and not figure.endswith(NO_RATIO)
        and all(_number(run.get(figure)) and run[figure] for run in (one, other))
    )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
