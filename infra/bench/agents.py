"""Synthetic coding agents against Corral and against the same engines asked directly: how much is prefilled again.

    python -m infra.bench.agents --start --model PATH              starts all it needs, one arm at a time
    python -m infra.bench.agents --corral URL [--engines URL,URL]  asks what runs already

Owns: the command line, the order A B A B, and the table. What a figure means stands in `agents_figures`.
Never: two arms at once. Exit code 1 when a request fails.
"""

import asyncio
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from infra.bench import agents_arms as kinds
from infra.bench import agents_report, report
from infra.bench.agents_arms import CORRAL, Opened, Opening, Staff
from infra.bench.agents_figures import figures
from infra.bench.agents_replay import Replay
from infra.bench.agents_routing import POLICIES
from infra.bench.agents_session import Cast, Kind, Shape
from infra.bench.command import run
from infra.bench.house import Engine
from infra.bench.report import Figures
from infra.errors import ConfigError, EngineError

ALL_ARMS = (CORRAL, *POLICIES)


def main(
    start: Annotated[bool, typer.Option("--start", help="Start Corral, then plain engines, for this run.")] = False,
    model: Annotated[str, typer.Option(help="With --start: a GGUF file, or demo.")] = "demo",
    workers: Annotated[int, typer.Option(min=1, help="With --start: workers, and engines asked directly.")] = 2,
    slots: Annotated[int, typer.Option(min=1, help="With --start: slots of an engine.")] = 4,
    context: Annotated[int, typer.Option(min=1, help="With --start: window of a slot.")] = 32_768,
    store: Annotated[str, typer.Option(help="With --start: on or off, Corral's store of saved slots.")] = "on",
    given: Annotated[list[str] | None, typer.Option("--set", help="With --start: a setting, NAME=VALUE.")] = None,
    direct_flags: Annotated[str, typer.Option(help="With --start: more flags for engines asked directly.")] = "",
    corral: Annotated[str, typer.Option(help="An Anthropic address that runs, as http://HOST:PORT.")] = "",
    key: Annotated[str, typer.Option(help="Its key, if it wants one.")] = "",
    engines: Annotated[str, typer.Option(help="OpenAI addresses that run, with commas.")] = "",
    engine_key: Annotated[str, typer.Option(help="Their key, if they want one.")] = "",
    arms: Annotated[str, typer.Option(help=f"What to compare, with commas, of {', '.join(ALL_ARMS)}.")] = "",
    repeat: Annotated[int, typer.Option(min=1, help="Rounds over all arms.")] = 2,
    agents: Annotated[int, typer.Option(min=1, help="Agents at once.")] = 8,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each agent.")] = 6,
    base: Annotated[int, typer.Option(min=1, help="Tokens of system and tools, shared by all.")] = 16_000,
    words: Annotated[str, typer.Option(help="New words of a turn, LEAST-MOST.")] = "100-600",
    gap: Annotated[float, typer.Option(min=0, help="Mean seconds between two turns.")] = 1.0,
    subagents: Annotated[int, typer.Option(min=0, help="Subagents that an agent starts in its life.")] = 0,
    sides: Annotated[int, typer.Option(min=0, help="Side calls beside each turn.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 32,
    seed: Annotated[str, typer.Option(help="Repeats a run, texts and all; else each run is new.")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Replay coding agents, and count what is prefilled again."""
    command, run_id = report.command_line("infra.bench.agents"), seed or secrets.token_hex(4)
    shape = Shape(agents, turns, 0, _bounds(words), gap, subagents, sides, max_tokens)
    own = kinds.settings(store, given or [], slots=slots, context_tokens=context, threads=1)
    staff = Staff(model, workers, own, kinds.flags(direct_flags))
    there = [Engine(url, engine_key) for url in filter(None, engines.split(","))]
    found, sized = kinds.started(staff) if start else kinds.running(corral, key, there)
    chosen = _chosen(arms, found)
    print(f"$ {command}\nrun {run_id}")
    runs = _rounds(chosen, sized(shape, base), run_id, repeat)
    agents_report.show(shape, runs)
    agents_report.save(json_file, command, run_id, shape, runs)
    _judge(runs, json_file)


def _rounds(chosen: Mapping[str, Opening], shape: Shape, run_id: str, repeat: int) -> dict[str, list[Figures]]:
    """All rounds over all arms: A B A B. Each has the same draws and words of its own."""
    runs: dict[str, list[Figures]] = {name: [] for name in chosen}
    for number in range(repeat):
        for name, opening in chosen.items():
            cast = Cast(shape, draws=run_id, text=f"{run_id}-{number}-{name}")
            with opening(shape) as opened:
                runs[name].append(_one(opened, cast, f"round {number + 1}/{repeat}, {name} ({opened.about})"))
    return runs


def _one(opened: Opened, cast: Cast, title: str) -> Figures:
    bases = {kind: opened.counter.base_tokens(cast, kind) for kind in (Kind.MAIN, Kind.SUBAGENT)}
    done = 0

    async def replay() -> Figures:
        try:
            turns, wall_s = await Replay(cast, opened.side, told).run()
        finally:
            await opened.side.close()
        return {"about": opened.about, "base_tokens": bases[Kind.MAIN]} | figures(turns, wall_s, bases)

    with Console(stderr=True).status(title) as status:

        def told() -> None:
            nonlocal done
            done += 1
            status.update(f"{title}: {done} of {cast.shape.requests} requests")

        return asyncio.run(replay())


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
