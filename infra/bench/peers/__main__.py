"""Corral and its peers side by side: same engines, same work, one table.

    python -m infra.bench.peers --model PATH [--rows first,agents]

Owns: the command line and the order of the rows.
Never: measures, or keeps a peer alive after its row.
"""

import asyncio
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from infra.bench import agents_house, progress, report
from infra.bench import house as houses
from infra.bench.agents_session import Shape
from infra.bench.command import JsonFile, Model, run
from infra.bench.four import Team
from infra.bench.latency import Load
from infra.bench.peers import one_engine, packages, several, sides, table
from infra.bench.peers.one_engine import Found, Told
from infra.bench.peers.several import Ground, Grounds
from infra.bench.peers.sides import CORRAL, LLAMA_SERVER, ROUTER_POLICIES, Peer, Side
from infra.errors import ConfigError, StartError

ROWS = ("first", "small", "rate", "memory", "four", "agents", "kill")
ON_ONE_ENGINE = {"first", "small", "rate", "memory"}
BODY_BYTES, SMALL_BYTES, ANSWER_TOKENS = 80_000, 2_000, 32
CLIENTS, SLOTS, CONTEXT_TOKENS = 16, 16, 49_152
FOUR_SLOTS, FOUR_CONTEXT_TOKENS = 4, 16_384


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured, and how much of it."""

    model: str
    long_model: str
    rows: tuple[str, ...]
    rounds: int
    requests: int
    repeat: int
    shape: Shape
    base: int
    context: int
    seed: str


def main(
    model: Model = "demo",
    long_model: Annotated[
        str, typer.Option(help="For the rows four and kill, one that says much; else the same.")
    ] = "",
    rows: Annotated[str, typer.Option(help=f"Rows, with commas, of {', '.join(ROWS)}; none: all.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Requests to each side, for the time to first token.")] = 60,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each side and round, for requests a second.")] = 48,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds of the agents over all sides.")] = 2,
    agents: Annotated[int, typer.Option(min=1, help="Agents at once.")] = 8,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each agent.")] = 6,
    base: Annotated[int, typer.Option(min=1, help="Tokens of the agents' system and tools.")] = 16_000,
    context: Annotated[int, typer.Option(min=1, help="Window of a slot, for the agents.")] = 32_768,
    router_policy: Annotated[
        str, typer.Option(help=f"Of vllm-router: {', '.join(ROUTER_POLICIES)}.")
    ] = "consistent_hash",
    cache: Annotated[Path | None, typer.Option(help="Where the peers' packages are kept.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Measure Corral, LiteLLM, vllm-router, claude-code-router and llama-server itself on the same engines.

    The peers are installed when they are not there: 900 MB. Takes some ten minutes on two cores with a tiny model.
    """
    shape = Shape(agents, turns, 0, (100, 600), 1.0, 0, 0, ANSWER_TOKENS)
    seed = secrets.token_hex(4)
    plan = Plan(model, long_model or model, _chosen(rows), rounds, requests, repeat, shape, base, context, seed)
    command, head = report.command_line("infra.bench.peers"), table.header()
    print(f"$ {command}")
    with progress.telling() as told:
        programs = _installed(_peers(router_policy), cache or packages.default_cache(), told)
        versions = {peer.name: peer.package.version for peer in programs}
        found = measure(plan, programs, told)
    names = table.order([peer.name for peer in programs])
    print(f"{head['date']}, {head['machine']}; " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    table.show("Peers side by side", names, found)
    for sentence in table.standing(found):
        print(sentence)
    report.save(json_file, command, head | {"versions": versions, "rows": found})


def measure(plan: Plan, programs: Mapping[Peer, Path], told: Told) -> dict[str, Found]:
    """All rows of `plan` by name."""
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory(prefix="corral-peers-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if ON_ONE_ENGINE & set(plan.rows):
            with _on_one_engine(plan.model, SLOTS, CONTEXT_TOKENS, programs, folder, told) as (asked, engines):
                _one_engine_rows(plan, asked, engines, found, told)
        if "four" in plan.rows:
            with _on_one_engine(plan.long_model, FOUR_SLOTS, FOUR_CONTEXT_TOKENS, programs, folder, told) as (asked, _):
                found["four"] = asyncio.run(one_engine.at_once(asked, Team(), plan.seed, 2, told))
        if "agents" in plan.rows:
            grounds = Grounds(Ground(plan.model, 2, 4, plan.context, folder / "agents"), programs)
            found["agents"] = several.agents(
                grounds, grounds.sized(plan.shape, plan.base), plan.seed, plan.repeat, told
            )
        if "kill" in plan.rows:
            grounds = Grounds(Ground(plan.long_model, 2, 4, FOUR_CONTEXT_TOKENS, folder / "kill"), programs)
            found["kill"] = several.killed(grounds, plan.seed, told)
    return found


def _one_engine_rows(plan: Plan, asked: list[Side], engines: set[int], found: dict[str, Found], told: Told) -> None:
    big, small = (Load(plan.seed, size, ANSWER_TOKENS) for size in (BODY_BYTES, SMALL_BYTES))
    measured: dict[str, Callable[[], Any]] = {
        "first": lambda: asyncio.run(one_engine.first_token(asked, big, plan.rounds, told)),
        "small": lambda: asyncio.run(one_engine.first_token(asked, small, plan.rounds, told)),
        "rate": lambda: asyncio.run(one_engine.throughput(asked, big, CLIENTS, plan.requests, told)),
        "memory": lambda: one_engine.memory(asked, engines),
    }
    for row, work in measured.items():
        if row in plan.rows:
            found[row] = work()


@contextmanager
def _on_one_engine(
    model: str, slots: int, context: int, programs: Mapping[Peer, Path], folder: Path, told: Told
) -> Iterator[tuple[list[Side], set[int]]]:
    """Corral with its engine, and the peers before another one that is run by the same command; the engines' pids."""
    told("starting Corral, an engine and the peers")
    before = _children()
    with ExitStack() as stack:
        house = stack.enter_context(houses.started(model, slots=slots, context_tokens=context, threads=1))
        parts = _children() - before
        commands = agents_house.commands_of(house)
        engines = stack.enter_context(agents_house.engines(commands, ()))
        asked = [Side(LLAMA_SERVER, engines[0].url, engines[0].key), Side(CORRAL, house.url, house.key, tuple(parts))]
        asked += stack.enter_context(sides.all_opened(programs, engines, folder))
        yield asked, {engine.pid for engine in (*house.engines, *engines)}


def _children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def _installed(wanted: tuple[Peer, ...], cache: Path, told: Told) -> dict[Peer, Path]:
    """The peers that are there, installed if need be. One that cannot be installed is left out, and stderr says why."""
    programs = {}
    for peer in wanted:
        told(f"installing {peer.name} {peer.package.version}, if it is not there")
        try:
            programs[peer] = packages.install(peer.package, cache)
        except StartError as error:
            print(f"error: {error}", file=sys.stderr)
    return programs


def _peers(router_policy: str) -> tuple[Peer, ...]:
    if router_policy not in ROUTER_POLICIES:
        raise ConfigError(f"--router-policy {router_policy}: must be one of {', '.join(ROUTER_POLICIES)}")
    return sides.peers(router_policy)


def _chosen(rows: str) -> tuple[str, ...]:
    names = tuple(filter(None, rows.split(","))) or ROWS
    for name in names:
        if name not in ROWS:
            raise ConfigError(f"--rows {name}: must be of {', '.join(ROWS)}")
    return names


if __name__ == "__main__":
    sys.exit(run(main))
