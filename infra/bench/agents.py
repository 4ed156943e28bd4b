"""Coding agents, made up or recorded, against Corral and against others: how much is prefilled again, and how soon the
first token comes.

    corral bench agents --start --model PATH              starts all it needs, one arm at a time
    corral bench agents --url URL [--engines URL,URL]     asks what runs already
    corral bench agents --compare URL URL                 each in turn, A B A B, with ratios
    corral bench agents --url URL --trace FILE            plays what `corral bench record` wrote

Owns: the command line, the order A B A B, and the table. What a figure means stands in `agents_figures`.
Never: two arms at once. Exit code 1 when a request fails.
"""

import asyncio
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from infra.bench import agents_arms as kinds
from infra.bench import agents_report, plot, progress, report
from infra.bench.address import Address, address, compared
from infra.bench.agents_arms import CORRAL, Opened, Opening, Staff
from infra.bench.agents_figures import figures
from infra.bench.agents_plays import Made, Play, Score, Traced
from infra.bench.agents_routing import POLICIES
from infra.bench.agents_session import Kind, Shape
from infra.bench.command import Compare, GivenUrl, JsonFile, More, StartedModel, run
from infra.bench.house import Engine
from infra.bench.progress import Told
from infra.bench.report import Figures
from infra.bench.trace import read
from infra.errors import ConfigError, EngineError

ALL_ARMS = (CORRAL, *POLICIES)


def main(
    more: More = None,
    start: Annotated[bool, typer.Option("--start", help="Start Corral, then plain engines, for this run.")] = False,
    model: StartedModel = "demo",
    workers: Annotated[int, typer.Option(min=1, help="With --start: workers, and engines asked directly.")] = 2,
    slots: Annotated[int, typer.Option(min=1, help="With --start: slots of an engine.")] = 4,
    context: Annotated[int, typer.Option(min=1, help="With --start: window of a slot.")] = 32_768,
    store: Annotated[str, typer.Option(help="With --start: on or off, Corral's store of saved slots.")] = "on",
    given: Annotated[list[str] | None, typer.Option("--set", help="With --start: a setting, NAME=VALUE.")] = None,
    direct_flags: Annotated[str, typer.Option(help="With --start: more flags for engines asked directly.")] = "",
    url: GivenUrl = "",
    compare_urls: Compare = None,
    key: Annotated[str, typer.Option(help="Their key, if they want one.")] = "",
    engines: Annotated[str, typer.Option(help="OpenAI addresses that run, with commas.")] = "",
    engine_key: Annotated[str, typer.Option(help="Their key, if they want one.")] = "",
    arms: Annotated[str, typer.Option(help=f"What to compare, with commas, of {', '.join(ALL_ARMS)}.")] = "",
    repeat: Annotated[int, typer.Option(min=1, help="Rounds over all arms.")] = 2,
    trace: Annotated[Path | None, typer.Option(help="Play this recorded trace instead of made-up agents.")] = None,
    speed: Annotated[float, typer.Option(min=0.01, help="With --trace: how many times faster pauses are.")] = 1.0,
    agents: Annotated[int, typer.Option(min=1, help="Agents at once.")] = 8,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each agent.")] = 6,
    base: Annotated[int, typer.Option(min=1, help="Tokens of system and tools, shared by all.")] = 16_000,
    words: Annotated[str, typer.Option(help="New words of a turn, LEAST-MOST.")] = "100-600",
    gap: Annotated[float, typer.Option(min=0, help="Mean seconds between two turns.")] = 1.0,
    subagents: Annotated[int, typer.Option(min=0, help="Subagents that an agent starts in its life.")] = 0,
    sides: Annotated[int, typer.Option(min=0, help="Side calls beside each turn.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 32,
    seed: Annotated[str, typer.Option(help="Repeats a run, texts and all; else each run is new.")] = "",
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Draw the turns: a .png, a .svg, or both.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Play coding agents, and count what is prefilled again."""
    own = kinds.settings(store, given or [], slots=slots, context_tokens=context, threads=1)
    staff = Staff(model, workers, own, kinds.flags(direct_flags)) if start else None
    asked = compared(compare_urls, more, key, start=start) or ((address(url, key, CORRAL),) if url else ())
    there = [Engine(one, engine_key) for one in filter(None, engines.split(","))]
    shape = Shape(agents, turns, 0, _bounds(words), gap, subagents, sides, max_tokens)
    score = Traced(read(trace), speed) if trace else Made(shape, base)
    _bench(score, staff, asked, there, Wanted(arms, repeat, seed or secrets.token_hex(4), plot_file, json_file))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to come out of it."""

    arms: str
    repeat: int
    run_id: str
    plot_file: Path | None
    json_file: Path | None


def _bench(
    score: Score, staff: Staff | None, asked: Sequence[Address], engines: Sequence[Engine], wanted: Wanted
) -> None:
    command = report.command_line("infra.bench.agents")
    if wanted.plot_file is not None:
        plot.check(wanted.plot_file)  # not after an hour
    found, counted = kinds.started(staff) if staff else kinds.running(asked, engines)
    chosen = _chosen(wanted.arms, found)
    print(f"$ {command}\nrun {wanted.run_id}")
    play = counted(lambda counter: score.play(counter, wanted.run_id))
    runs = _rounds(chosen, play, wanted.run_id, wanted.repeat)
    agents_report.show(play.about, runs)
    agents_report.save(wanted.json_file, command, wanted.run_id, play.shape, runs)
    if wanted.plot_file is not None:
        for file in plot.draw(wanted.plot_file, runs, play.about):
            print(f"drawn: {file}")
    _judge(runs, wanted.json_file)


def _rounds(chosen: Mapping[str, Opening], play: Play, run_id: str, repeat: int) -> dict[str, list[Figures]]:
    """All rounds over all arms: A B A B. Each has the same draws and words of its own."""
    runs: dict[str, list[Figures]] = {name: [] for name in chosen}
    for number in range(repeat):
        for name, opening in chosen.items():
            with opening(play.shape) as opened:
                title = f"round {number + 1}/{repeat}, {name} ({opened.about})"
                with progress.work(title, play.requests) as told:
                    runs[name].append(_one(play, opened, f"{run_id}-{number}-{name}", told))
    return runs


def _one(play: Play, opened: Opened, text: str, told: Told) -> Figures:
    part = play.part(opened.counter, text)

    async def run_it() -> Figures:
        try:
            turns, wall_s = await part.run(opened.side, told)
        finally:
            await opened.side.close()
        return {"about": opened.about, "base_tokens": part.bases[Kind.MAIN]} | figures(turns, wall_s, part.bases)

    return asyncio.run(run_it())


def _chosen(arms: str, found: Mapping[str, Opening]) -> dict[str, Opening]:
    """The arms asked for, in that order. Raises ConfigError for one that is not known, or not possible here."""
    names = list(filter(None, arms.split(","))) or list(found)
    for name in names:
        if name not in found:
            raise ConfigError(f"--arms {name}: must be of {', '.join(found)}")
    return {name: found[name] for name in names}


def _bounds(words: str) -> tuple[int, int]:
    """LEAST-MOST as numbers. Raises ConfigError."""
    least, _, most = words.partition("-")
    if not (least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most)):
        raise ConfigError(f"--words {words}: must be LEAST-MOST, as 100-600")
    return int(least), int(most)


def _judge(runs: Mapping[str, list[Figures]], json_file: Path | None) -> None:
    """Raises EngineError when a request failed in any round, with an error of each arm or the file that holds them."""
    failed = {name: agents_report.total(found, "failed") for name, found in runs.items()}
    if any(failed.values()):
        words = ", ".join(f"{count} of {name}" for name, count in failed.items() if count)
        firsts = "; ".join(f"{name}: {error}" for name, found in runs.items() if (error := _first_error(found)))
        raise EngineError(f"requests failed: {words}; " + (f"errors stand in {json_file}" if json_file else firsts))


def _first_error(rounds: Sequence[Figures]) -> str:
    """The most frequent of the first round that has one; empty when none failed."""
    return next((error for run in rounds for error in run.get("errors", ())), "")


if __name__ == "__main__":
    sys.exit(run(main))
