"""Short requests without identity on two workers: gathered to be sent together, or each on its own.

    python -m infra.bench.gather --model PATH

Owns: the command line, the turns of short rounds on two clusters that run side by side, so that both meet the same
machine, and the report. Exit code 1 when a request fails.
Never: repeats a request.

Two loads a round: clients that ask again as soon as they are answered, and bursts that come at set times.
"""

import asyncio
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from statistics import fmean, median
from time import perf_counter
from typing import Annotated, Any

import orjson
import typer

from infra.bench import house as houses
from infra.bench import progress, report
from infra.bench.bodies import words
from infra.bench.coalesce_clients import Answer, Clients
from infra.bench.command import JsonFile, Model, run
from infra.bench.house import House
from infra.bench.report import Figures
from infra.errors import EngineError

PAUSE_S = 0.5  # from burst to burst
SIDES = {"off": False, "on": True}
HEAD = {"content-type": "application/json", "anthropic-version": "2023-06-01"}


def main(
    model: Model = "demo",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each side has its turn in each.")] = 8,
    clients: Annotated[int, typer.Option(min=1, help="Clients of the closed loop.")] = 12,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each load of a round.")] = 48,
    burst: Annotated[int, typer.Option(min=1, help="Requests of one burst.")] = 6,
    prompt_words: Annotated[int, typer.Option(min=1, help="Words of a prompt.")] = 60,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 64,
    slots: Annotated[int, typer.Option(min=1, help="Slots of each engine.")] = 8,
    json_file: JsonFile = None,
) -> None:
    """Ask two workers many short things, with `gather_short` off and on."""
    command = report.command_line("infra.bench.gather")
    print(f"$ {command}")
    shape: dict[str, Any] = {"slots": slots, "context_tokens": 4096, "threads": 1, "queue_limit": max(64, requests)}
    shape |= {"coalesce": False, "store_dir": "off"}
    with ExitStack() as both:
        sides = {
            name: both.enter_context(houses.started(model, workers=2, **shape, gather_short=on))
            for name, on in SIDES.items()
        }
        figures = asyncio.run(_rounds(sides, rounds, lambda: _body(prompt_words, max_tokens), clients, requests, burst))
    report.show(f"{rounds} rounds, gather_short off and on", [*figures.items()])
    report.save(json_file, command, figures)
    if any(load["failed"] for loads in figures.values() for load in loads.values()):
        raise EngineError("requests failed")


async def _rounds(
    sides: Mapping[str, House], rounds: int, body: Callable[[], bytes], clients: int, requests: int, burst: int
) -> Figures:
    """name -> load -> figures; each side takes its turn in each round."""
    came: dict[str, dict[str, list[list[Answer]]]] = {name: {"closed": [], "bursts": []} for name in sides}
    for house in sides.values():
        await asyncio.gather(*(_ask(house, body()) for _ in range(4)))
    with progress.telling() as told:
        for round_ in range(rounds):
            # Off, on, on, off, ..: a machine that grows busier or quieter favours neither.
            for name, house in sorted(sides.items(), reverse=round_ % 2 == 1):
                told(f"round {round_ + 1}/{rounds}, gather_short {name}")
                came[name]["closed"].append(await _closed(house, [body() for _ in range(requests)], clients))
                came[name]["bursts"].append(await _bursts(house, [body() for _ in range(requests)], burst))
    return {name: {load: side_figures(each) for load, each in loads.items()} for name, loads in came.items()}


async def _closed(house: House, asked: Sequence[bytes], clients: int) -> list[Answer]:
    async def client_asks(client: int) -> list[Answer]:
        return [await _ask(house, body) for body in asked[client::clients]]

    return [answer for share in await asyncio.gather(*map(client_asks, range(clients))) for answer in share]


async def _bursts(house: House, asked: Sequence[bytes], burst: int) -> list[Answer]:
    began_s = perf_counter()

    async def at(number: int, body: bytes) -> Answer:
        await asyncio.sleep(began_s + number // burst * PAUSE_S - perf_counter())
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


def side_figures(rounds: Sequence[Sequence[Answer]]) -> Figures:
    """Of all rounds: the median of each round's throughput, and the spread of all times, of those that succeeded."""
    failed = sum(answer.text is None for each in rounds for answer in each)
    fine = [[answer for answer in each if answer.text is not None] for each in rounds]
    if not all(fine):
        return {"failed": failed}
    rates = [len(each) / (max(a.last_s for a in each) - min(a.asked_s for a in each)) for each in fine]
    means = [1000 * fmean(answer.last_s - answer.asked_s for answer in each) for each in fine]
    answers = [answer for each in fine for answer in each]
    return {
        "failed": failed,
        "per_s": round(median(rates), 1),
        "whole_mean_ms_of_rounds": [round(mean) for mean in means],
        "first_ms": report.spread_ms([answer.first_s - answer.asked_s for answer in answers]),
        "whole_ms": report.spread_ms([answer.last_s - answer.asked_s for answer in answers]),
    }


if __name__ == "__main__":
    sys.exit(run(main))
