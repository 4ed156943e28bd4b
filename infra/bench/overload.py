"""Far more requests than there is room for: who is refused, how soon, and does the hint of a refusal hold.

    python -m infra.bench.overload --start --model PATH      starts all it needs, ends it again
    python -m infra.bench.overload --url URL                 loads a Corral that runs, and nobody else uses

Owns: the command line and the report.
Never: judges a figure.
"""

import asyncio
import secrets
import sys
from dataclasses import replace
from typing import Annotated

import typer

from infra.bench import house as houses
from infra.bench import overload_figures, progress, report, shares
from infra.bench.asking import MESSAGES, Outcome, Target
from infra.bench.command import DEFAULT_URL, JsonFile, StartedModel, Url, run
from infra.bench.house import House
from infra.bench.lines import Line, Run
from infra.bench.overload_load import Arrivals, Attempt, memory
from infra.bench.progress import Told
from infra.bench.report import Figures
from infra.errors import EngineError

CALM_ASKS = 5


def main(
    start: Annotated[bool, typer.Option("--start", help="Start a broker, an API and workers for this run.")] = False,
    model: StartedModel = "demo",
    url: Url = DEFAULT_URL,
    key: Annotated[str, typer.Option(help="Its key, if it wants one.")] = "",
    times: Annotated[float, typer.Option(min=0.1, help="What is asked for, in times what there is.")] = 10.0,
    seconds: Annotated[float, typer.Option(min=1, help="How long callers come.")] = 30.0,
    fresh_tokens: Annotated[int, typer.Option(min=1, help="Prompt of a request.")] = 300,
    output_tokens: Annotated[int, typer.Option(min=1, help="Answer of a request.")] = 60,
    follow: Annotated[float, typer.Option(min=0, help="Refused callers told at most so many seconds return.")] = 60.0,
    anonymous: Annotated[int, typer.Option(min=0, max=100, help="Percent of callers without identity.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="With --start: workers.")] = 1,
    slots: Annotated[int, typer.Option(min=1, help="With --start: slots of each.")] = 4,
    context: Annotated[int, typer.Option(min=1, help="With --start: window of a slot.")] = 8_192,
    json_file: JsonFile = None,
) -> None:
    """Overload a Corral; every refused caller does once as it was told."""
    command = report.command_line("infra.bench.overload")
    print(f"$ {command}")
    line = Line("agent", "caller", fresh_tokens, output_tokens)
    if start:
        with houses.started(model, workers, slots=slots, context_tokens=context, threads=1) as house:
            print(f"Corral with {houses.settings_line(house)}")
            figures = asyncio.run(measure(house, line, times, seconds, follow, anonymous))
    else:
        house = houses.running(url, key, "", None)
        figures = asyncio.run(measure(house, line, times, seconds, follow, anonymous))
    report.show(f"{times:g} times what there is for {seconds:g} s", [*figures.items()])
    report.save(json_file, command, figures)


async def measure(
    house: House, line: Line, times: float, seconds: float, follow_s: float, anonymous: int = 0
) -> Figures:
    """An answer's own time in calm, then the overload. Raises EngineError when it fails even in calm."""
    target = Target(house.url, house.key, MESSAGES)
    seed = secrets.token_hex(4)
    try:
        with progress.telling() as at:
            at(f"in calm, {CALM_ASKS} requests of each slot")
            calm_s = overload_figures.own_s(await _in_calm(house, line, target, seed))
        arrivals = Arrivals(line, times * house.slots / calm_s, seconds, follow_s, anonymous)
        with progress.work("overload", arrivals.count) as told:
            attempts, samples = await _under_load(arrivals, target, seed, house.api_pid, told)
    finally:
        await target.close()
    figures: Figures = {"per_s": round(arrivals.per_s, 1), "calm_s": round(calm_s, 2)}
    figures |= overload_figures.figures_of(attempts)
    if samples:
        figures["api_memory"] = overload_figures.growth(samples)
    return figures


async def _in_calm(house: House, line: Line, target: Target, seed: str) -> list[Outcome]:
    """Every slot at work and nobody waiting; Corral learns how long answers are. Raises EngineError."""
    run = Run(target, seed)
    lines = (replace(line, name=f"calm{number}") for number in range(house.slots))
    await asyncio.gather(*(run.some(one, 0, CALM_ASKS) for one in lines))
    if bad := shares.failures(run.served):
        raise EngineError(f"a request of the bench failed: {bad[0]}")
    return [one.outcome for one in run.served]


async def _under_load(
    arrivals: Arrivals, target: Target, seed: str, api_pid: int, told: Told
) -> tuple[list[Attempt], list[int]]:
    load = asyncio.create_task(arrivals.all(target, seed, told))
    samples = await memory(api_pid, load.done) if api_pid else []
    return await load, samples


if __name__ == "__main__":
    sys.exit(run(main))
