"""What Corral adds to its own engine: time, requests per second, broker commands, memory.

    corral bench overhead --start --model PATH            starts all it needs, ends it again
    corral bench overhead --url URL [--engine URL]        measures a Corral that runs, beside its engine
    corral bench overhead --compare URL URL               whoever runs there, in turn, A B A B

Owns: the command line, which parts are measured, and the report.
Never: a measurement by itself.
"""

import asyncio
import secrets
import sys
from time import perf_counter
from typing import Annotated

import typer

from infra.bench import house as houses
from infra.bench import overhead_compare, progress, report
from infra.bench.address import compared
from infra.bench.command import DEFAULT_URL, Compare, JsonFile, More, Start, StartedModel, Url, run
from infra.bench.costs import Broker
from infra.bench.house import Engine, House
from infra.bench.latency import Load, Sides, fine, first_token, throughput
from infra.bench.processor import processor_time
from infra.bench.report import Figures
from infra.bench.streams import waiting_streams
from infra.bench.where import stage_medians_ms
from infra.errors import ConfigError

PARTS = ("first", "rate", "processor", "where", "commands", "streams")
OWN_SETTINGS = ("where", "streams")  # these need a Corral with settings of their own
ONLY_STARTED = ("processor", *OWN_SETTINGS)  # the first needs its processes
LONG_ANSWER_TOKENS = 160
COUNTED_JOBS = 20


def main(
    more: More = None,
    start: Start = False,
    model: StartedModel = "demo",
    url: Url = DEFAULT_URL,
    compare_urls: Compare = None,
    repeat: Annotated[int, typer.Option(min=1, help="With --compare: rounds over all addresses.")] = 4,
    key: Annotated[str, typer.Option(help="Its key, if it wants one.")] = "",
    redis_url: Annotated[str, typer.Option(help="Its broker, to count commands.")] = "",
    engine: Annotated[str, typer.Option(help="Its engine; found by itself on the same machine.")] = "",
    engine_key: Annotated[str, typer.Option(help="The engine's key.")] = "",
    only: Annotated[str, typer.Option(help=f"Parts to measure, with commas, of {', '.join(PARTS)}.")] = "",
    body_bytes: Annotated[int, typer.Option(min=1_200, help="Size of a request.")] = 80_000,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 32,
    stop: Annotated[list[str] | None, typer.Option(help="Stop words that Corral adds for this model.")] = None,
    pairs: Annotated[int, typer.Option(min=1, help="Requests to each side, for the time to first token.")] = 100,
    clients: Annotated[int, typer.Option(min=1, help="Clients, for requests per second.")] = 16,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each of the four rounds.")] = 96,
    slots: Annotated[int, typer.Option(min=1, help="With --start: slots of the engine.")] = 16,
    context: Annotated[int, typer.Option(min=1, help="With --start: window of a slot.")] = 49_152,
    streams: Annotated[int, typer.Option(min=1, help="Streams that wait at once.")] = 500,
    json_file: JsonFile = None,
) -> None:
    """Measure what Corral adds to its own engine."""
    load = Load(secrets.token_hex(4), body_bytes, max_tokens, tuple(stop or ()))
    command, wanted = report.command_line("infra.bench.overhead"), _parts(only, start)
    asked = compared(compare_urls, more, key, start=start)
    print(f"$ {command}")
    shape = {"slots": slots, "context_tokens": context, "threads": 1}
    counts = (pairs, clients, requests)
    if asked:
        overhead_compare.bench(asked, load, repeat, *counts, command=command, json_file=json_file)
        return
    figures: Figures = {}
    if start:
        _started(model, shape, load, wanted, counts, streams, figures)
    else:
        house = houses.running(url, key, redis_url, Engine(engine, engine_key) if engine else None)
        _measure(house, load, wanted, figures, *counts)
    report.save(json_file, command, figures)


def _started(
    model: str,
    shape: dict[str, int],
    load: Load,
    wanted: tuple[str, ...],
    counts: tuple[int, int, int],
    streams: int,
    figures: Figures,
) -> None:
    if not set(wanted) <= set(OWN_SETTINGS):
        with houses.started(model, **shape) as house:
            _measure(house, load, wanted, figures, *counts)
    if "where" in wanted:
        with houses.started(model, **shape, log_level="debug") as house:
            figures["where"] = _where(house, load, counts[0])
    if "streams" in wanted:
        _measure_streams(model, shape, load, streams, figures)


def _measure_streams(model: str, shape: dict[str, int], load: Load, streams: int, figures: Figures) -> None:
    # The wait is allowed to be long: who would wait for longer than that is told at once. So is the engine's silence.
    waiting = {"slots": 1, "queue_limit": 4 * streams, "early_commit_s": 1, "wait_identified_s": 36_000, "hang_s": 3600}
    with houses.started(model, **(shape | waiting)) as house:
        figures["streams"] = asyncio.run(waiting_streams(house, load, streams))
        report.show(f"{streams} waiting streams ({houses.settings_line(house)})", [*figures["streams"].items()])


def _parts(only: str, start: bool) -> tuple[str, ...]:
    """The parts to measure. Raises ConfigError for one that is not known, or not possible here."""
    possible = PARTS if start else tuple(part for part in PARTS if part not in ONLY_STARTED)
    chosen = tuple(filter(None, only.split(","))) or possible
    for part in chosen:
        if part not in possible:
            raise ConfigError(f"--only {part}: must be of {', '.join(possible)}")
    return chosen


def _measure(
    house: House, load: Load, wanted: tuple[str, ...], figures: Figures, pairs: int, clients: int, requests: int
) -> None:
    async def measure() -> None:
        async with Sides(house, load) as sides:
            if "first" in wanted:
                with progress.work("time to first token", 2 * pairs) as told:
                    figures["first"] = await first_token(sides, pairs, told)
                report.show("Time to first token, A B A B", [*figures["first"].items()])
            if "rate" in wanted:
                with progress.work("requests per second", 4 * requests) as told:
                    figures["rate"] = await throughput(sides, clients, requests, told)
                report.show("Requests per second, A B A B", [*figures["rate"].items()])
            if "processor" in wanted:
                figures["processor"] = await processor_time(sides, LONG_ANSWER_TOKENS)
                report.show("Processor time", [*figures["processor"].items()])
            if "commands" in wanted and house.redis_url:
                figures["commands"] = await _commands(sides)
                report.show("Broker commands", [*figures["commands"].items()])

    if house.settings:
        print(f"Corral with {houses.settings_line(house)}")
    asyncio.run(measure())


async def _commands(sides: Sides) -> Figures:
    """Commands of a job with an answer of one token, and of each token more when the model says enough."""
    broker = Broker(sides.house.redis_url)
    try:
        short, short_tokens = await _counted(sides, broker, 1)
        long, long_tokens = await _counted(sides, broker, LONG_ANSWER_TOKENS)
    finally:
        broker.close()
    named = {name: round(calls, 1) for name, calls in sorted(short.items(), key=lambda item: -item[1]) if calls > 0.2}
    figures: Figures = {"per_job": round(sum(short.values()), 1), "of_which": named}
    if long_tokens > short_tokens:
        more = (sum(long.values()) - sum(short.values())) / (long_tokens - short_tokens)
        figures |= {"per_token": round(more, 2), "answer_tokens": [short_tokens, long_tokens]}
    return figures


async def _counted(sides: Sides, broker: Broker, max_tokens: int) -> tuple[dict[str, float], float]:
    """Commands per job, and its tokens of output."""
    load = Load(sides.load.seed, sides.load.size_bytes, max_tokens, sides.load.stop)
    talk = load.conversation("counted")
    await sides.warm(talk)
    tokens = 0

    async def work() -> float:
        nonlocal tokens
        began_s = perf_counter()
        for number in range(COUNTED_JOBS):
            outcome = fine(await sides.ask_gateway(talk, 0, f"count {max_tokens} {number:04}"))
            tokens += outcome.output_tokens
        return perf_counter() - began_s

    calls, _ = await broker.during(work, asyncio.sleep)
    return {name: count / COUNTED_JOBS for name, count in calls.items()}, tokens / COUNTED_JOBS


def _where(house: House, load: Load, pairs: int) -> Figures:
    async def ask() -> None:
        async with Sides(house, load) as sides:
            await first_token(sides, pairs)

    asyncio.run(ask())
    assert house.logs is not None  # noqa: S101  # the bench started it
    figures = stage_medians_ms(house.logs)
    report.show("Where the time goes, medians in ms", [*figures.items()])
    return figures


if __name__ == "__main__":
    sys.exit(run(main))
