"""Who gets how much, and who waits how long, when unequal agents ask for more than there is.

    python -m infra.bench.fairness --start --model PATH      starts all it needs, ends it again
    python -m infra.bench.fairness --url URL                 loads a Corral that runs, and nobody else uses

Owns: the command line and the report.
Never: judges a figure.

All agents at level 5 have the same right to the cluster, but answers, pauses and numbers of lines of their own. A
review agent at level 0 seldom asks, a background agent at level 9 always does. Service is reckoned from what answers
used, at the rates that the workers measured with all slots at work.
"""

import asyncio
import secrets
import sys
from statistics import fmean
from typing import Annotated

import httpx
import typer

from infra.bench import house as houses
from infra.bench import progress, report, shares
from infra.bench.asking import MESSAGES, Target
from infra.bench.command import DEFAULT_URL, JsonFile, StartedModel, Url, run
from infra.bench.fairness_mix import REVIEW, Mix
from infra.bench.house import House
from infra.bench.lines import Line, Run
from infra.bench.report import Figures
from infra.bench.shares import Pace
from infra.errors import EngineError

LEARNING_S = 10.0
MOST_ERRORS = 3  # shown; each names its request, so of one kind there may be hundreds


def main(
    start: Annotated[bool, typer.Option("--start", help="Start a broker, an API and workers for this run.")] = False,
    model: StartedModel = "demo",
    url: Url = DEFAULT_URL,
    key: Annotated[str, typer.Option(help="Its key, if it wants one.")] = "",
    seconds: Annotated[float, typer.Option(min=1, help="How long the agents ask.")] = 180,
    agents: Annotated[int, typer.Option(min=3, help="Agents at level 5.")] = 12,
    overload: Annotated[float, typer.Option(min=0.1, help="What they want, in times what there is.")] = 2.0,
    unit: Annotated[float, typer.Option(min=0.1, help="Answers take 0.2 to 1.2 times so many seconds.")] = 3.0,
    workers: Annotated[int, typer.Option(min=1, help="With --start: workers.")] = 2,
    slots: Annotated[int, typer.Option(min=1, help="With --start: slots of each.")] = 2,
    context: Annotated[int, typer.Option(min=1, help="With --start: window of a slot.")] = 16_384,
    json_file: JsonFile = None,
) -> None:
    """Load a Corral with unequal agents and report how it shares itself out."""
    command = report.command_line("infra.bench.fairness")
    print(f"$ {command}")
    if start:
        with houses.started(model, workers, slots=slots, context_tokens=context, threads=1) as house:
            print(f"Corral with {houses.settings_line(house)}")
            figures = asyncio.run(_measure(house, agents, overload, unit, seconds))
    else:
        house = houses.running(url, key, "", None)
        figures = asyncio.run(_measure(house, agents, overload, unit, seconds))
    report.show(f"{agents} agents for {seconds:g} s", [*figures.items()])
    report.save(json_file, command, figures)


async def _measure(house: House, agents: int, overload: float, unit_s: float, seconds: float) -> Figures:
    target = Target(house.url, house.key, MESSAGES)
    try:
        with progress.telling() as told:
            told(f"learning for {LEARNING_S:g} s how fast the workers are")
            pace = await _learn(house, target)
            mix = Mix(agents, house.slots, overload, unit_s, pace)
            told(f"{agents} agents at level 5, and two others, ask for {seconds:g} s")
            served = await Run(target, secrets.token_hex(4)).for_seconds([*mix.lines, *mix.extras], seconds)
    finally:
        await target.close()
    attained = shares.attained_s(served, pace)
    equals = sorted({line.agent for line in mix.lines})
    review = shares.latency_ratio(served, [REVIEW], mix.peers)
    return {
        "tokens_per_s": {"prefill": round(pace.prefill), "decode": round(pace.decode, 1)},
        "jain": round(shares.jain(attained.get(agent, 0.0) for agent in equals), 3),
        "review_of_level_5": "one had no answer" if review is None else round(review, 3),
        "service_s": {agent: round(service_s, 1) for agent, service_s in sorted(attained.items())},
        **shares.waits(served),
        "prediction": shares.prediction(one.outcome for one in served),
        "errors": shares.failures(served)[:MOST_ERRORS],
    }


async def _learn(house: House, target: Target) -> Pace:
    """The rates that the workers measure with every slot at work. Raises EngineError when a request fails."""
    lines = [Line("learning", f"line{number}", fresh_tokens=500, output_tokens=64) for number in range(house.slots)]
    learned = await Run(target, secrets.token_hex(4)).for_seconds(lines, LEARNING_S)
    if errors := shares.failures(learned):
        raise EngineError(f"a request of the bench failed: {errors[0]}")
    headers = {"x-api-key": house.key} if house.key else {}
    async with httpx.AsyncClient(timeout=10, trust_env=False) as http:
        status = (await http.get(f"{house.url}/v1/status", headers=headers)).json()
    rates = [worker["rates"] for worker in status["workers"]]
    return Pace(
        fmean(rate["prefill_tokens_per_s"] for rate in rates), fmean(rate["decode_tokens_per_s"] for rate in rates)
    )


if __name__ == "__main__":
    sys.exit(run(main))
