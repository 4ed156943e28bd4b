"""Short requests without identity on two workers: gathered to be sent together, or each on its own.

    python -m infra.bench.gather --model PATH

Owns: the command line, the order off, on, off, on inside one run, and the report. Exit code 1 when a request fails.
Never: repeats a request.

Two loads: clients that ask again as soon as they are answered, and bursts that come at set times.
"""

import asyncio
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Annotated

import orjson
import typer

from infra.bench import house as houses
from infra.bench import report
from infra.bench.bodies import words
from infra.bench.coalesce_clients import Answer, Clients
from infra.bench.command import run
from infra.bench.house import House
from infra.bench.report import Figures
from infra.errors import EngineError

ORDER = (False, True, False, True)
HEAD = {"content-type": "application/json", "anthropic-version": "2023-06-01"}


def main(
    model: Annotated[str, typer.Option(help="A GGUF file, or demo.")] = "demo",
    clients: Annotated[int, typer.Option(min=1, help="Clients of the closed loop.")] = 12,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each load.")] = 240,
    burst: Annotated[int, typer.Option(min=1, help="Requests of one burst.")] = 6,
    pause_s: Annotated[float, typer.Option(min=0.01, help="Seconds from burst to burst.")] = 0.5,
    prompt_words: Annotated[int, typer.Option(min=1, help="Words of a prompt.")] = 60,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 64,
    slots: Annotated[int, typer.Option(min=1, help="Slots of each engine.")] = 8,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Ask two workers many short things, with `gather_short` off and on."""
    command = report.command_line("infra.bench.gather")
    print(f"$ {command}")
    figures: Figures = {}
    for round_, gather in enumerate(ORDER):
        name = f"{'on' if gather else 'off'} {round_ // 2 + 1}"
        shape = {"slots": slots, "context_tokens": 4096, "threads": 1, "queue_limit": max(64, requests)}
        with houses.started(model, workers=2, **shape, gather_short=gather, coalesce=False, store_dir="off") as house:
            asked = [_body(prompt_words, max_tokens) for _ in range(2 * requests)]
            figures[name] = asyncio.run(_measure(house, asked, clients, burst, pause_s))
        report.show(f"gather_short {name}", [*figures[name].items()])
    report.save(json_file, command, figures)
    if any(load["failed"] for loads in figures.values() for load in loads.values()):
        raise EngineError("requests failed")


async def _measure(house: House, asked: Sequence[bytes], clients: int, burst: int, pause_s: float) -> Figures:
    half = len(asked) // 2
    await asyncio.gather(*(_ask(house, _body(10, 4)) for _ in range(4)))
    return {
        "closed": _figures(await _closed(house, asked[:half], clients)),
        "bursts": _figures(await _bursts(house, asked[half:], burst, pause_s)),
    }


async def _closed(house: House, asked: Sequence[bytes], clients: int) -> list[Answer]:
    async def client_asks(client: int) -> list[Answer]:
        return [await _ask(house, body) for body in asked[client::clients]]

    return [answer for share in await asyncio.gather(*map(client_asks, range(clients))) for answer in share]


async def _bursts(house: House, asked: Sequence[bytes], burst: int, pause_s: float) -> list[Answer]:
    began_s = perf_counter()

    async def at(number: int, body: bytes) -> Answer:
        await asyncio.sleep(began_s + number // burst * pause_s - perf_counter())
        return await _ask(house, body)

    return list(await asyncio.gather(*(at(number, body) for number, body in enumerate(asked))))


async def _ask(house: House, body: bytes) -> Answer:
    clients = Clients(house.url, body)
    return await clients.ask(await clients.connect(), HEAD)


def _body(prompt_words: int, max_tokens: int) -> bytes:
    """A request of nobody in particular, different from all others."""
    text = words(secrets.token_hex(8), prompt_words)
    body = {"model": "bench", "max_tokens": max_tokens, "stream": True, "temperature": 0}
    return orjson.dumps(body | {"messages": [{"role": "user", "content": text}]})


def _figures(answers: Sequence[Answer]) -> Figures:
    took_s = max(answer.last_s for answer in answers) - min(answer.asked_s for answer in answers)
    return {
        "failed": sum(answer.text is None for answer in answers),
        "per_s": round(len(answers) / took_s, 1),
        "first_ms": report.spread_ms([answer.first_s - answer.asked_s for answer in answers]),
        "whole_ms": report.spread_ms([answer.last_s - answer.asked_s for answer in answers]),
    }


if __name__ == "__main__":
    sys.exit(run(main))
