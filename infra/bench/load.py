"""Many clients at once: does every request succeed at its first attempt, and how long does it take.

    python -m infra.bench.load --start --model PATH      starts all it needs, ends it again
    python -m infra.bench.load --corral URL              loads a Corral that runs

Owns: the command line and the report. Exit code 1 when a request fails.
Never: repeats a request.
"""

import asyncio
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from infra.bench import house as houses
from infra.bench import report
from infra.bench.asking import Ask, Outcome, side_by_side
from infra.bench.command import run
from infra.bench.house import Engine, House
from infra.bench.latency import Load, Sides
from infra.bench.report import Figures
from infra.errors import EngineError

ANY_SLOT = -1


def main(
    start: Annotated[bool, typer.Option("--start", help="Start a broker, an API and a worker for this run.")] = False,
    model: Annotated[str, typer.Option(help="With --start: a GGUF file, or demo.")] = "demo",
    corral: Annotated[str, typer.Option(help="A Corral that runs, as http://HOST:PORT.")] = "http://127.0.0.1:8000",
    key: Annotated[str, typer.Option(help="Its key, if it wants one.")] = "",
    engine: Annotated[str, typer.Option(help="Its engine; found by itself on the same machine.")] = "",
    engine_key: Annotated[str, typer.Option(help="The engine's key.")] = "",
    clients: Annotated[int, typer.Option(min=1, help="Clients that ask at once.")] = 100,
    requests: Annotated[int, typer.Option(min=1, help="Requests in all, each different.")] = 500,
    body_bytes: Annotated[int, typer.Option(min=500, help="Size of a request.")] = 4_000,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 32,
    slots: Annotated[int, typer.Option(min=1, help="With --start: slots of the engine.")] = 16,
    context: Annotated[int, typer.Option(min=1, help="With --start: window of a slot.")] = 49_152,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Load Corral, then its engine alone in the same way."""
    load = Load(secrets.token_hex(4), body_bytes, max_tokens)
    command = report.command_line("infra.bench.load")
    print(f"$ {command}")
    if start:
        # Clients that find no slot wait in the line, so it must hold them all.
        shape = {"slots": slots, "context_tokens": context, "threads": 1, "queue_limit": max(64, clients)}
        with houses.started(model, **shape) as house:
            print(f"Corral with {houses.settings_line(house)}")
            figures = asyncio.run(_measure(house, load, clients, requests))
    else:
        given = Engine(engine, engine_key) if engine else None
        figures = asyncio.run(_measure(houses.running(corral, key, "", given), load, clients, requests))
    report.show(f"{requests} requests from {clients} clients", [*figures.items()])
    report.save(json_file, command, figures)
    if figures["gateway"]["failed"]:
        raise EngineError(f"{figures['gateway']['failed']} of {requests} requests failed")


async def _measure(house: House, load: Load, clients: int, requests: int) -> Figures:
    async with Sides(house, load) as sides:
        talks = [load.conversation(f"client{client}") for client in range(clients)]
        await sides.warm(load.conversation("warm"))

        async def ours(client: int, number: int) -> Outcome:
            return await sides.ask_gateway(talks[client], 0, f"ours {number:06}")

        async def theirs(client: int, number: int) -> Outcome:
            # Unpinned: with more clients than slots the engine itself is to choose.
            return await sides.ask_engine(talks[client], 0, f"theirs {number:06}", ANY_SLOT)

        sides_of: Sequence[tuple[str, Ask]] = (("gateway", ours), ("engine", theirs))
        return {name: _figures(*await side_by_side(ask, clients, requests)) for name, ask in sides_of}


def _figures(outcomes: Sequence[Outcome], took_s: float) -> Figures:
    fine = [outcome for outcome in outcomes if outcome.fine]
    figures: Figures = {
        "first_attempt": f"{len(fine) / len(outcomes):.2%}",
        "failed": len(outcomes) - len(fine),
        "per_s": round(len(outcomes) / took_s, 2),
    }
    if fine:
        figures["whole_ms"] = report.spread_ms([outcome.whole_s for outcome in fine])
        figures["first_ms"] = report.spread_ms([outcome.first_s for outcome in fine])
    if len(fine) < len(outcomes):
        figures["errors"] = dict(Counter(outcome.error for outcome in outcomes if not outcome.fine).most_common(5))
    return figures


if __name__ == "__main__":
    sys.exit(run(main))
