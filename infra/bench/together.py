"""A few agents at once on one worker: mean latency through Corral, and of its engine asked directly.

    python -m infra.bench.together --start --model PATH      starts all it needs, ends it again
    python -m infra.bench.together --corral URL              measures a Corral that runs, with one worker

Owns: the command line, the order A B A B inside one run, and the report.
Never: judges a figure.

Direct requests go to the same engine without a slot's number, as a client without Corral sends them. With --start there
is a third side: the same engine with one slot, which is a queue in front of an engine that serves one at a time.
Each round brings new prompts to every side, so that nobody finds a cache and all do the same work.
"""

import asyncio
import json
import secrets
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from infra.bench import agents_house, report
from infra.bench import house as houses
from infra.bench.asking import CHAT, MESSAGES, Outcome, Target
from infra.bench.bodies import words
from infra.bench.command import run
from infra.bench.house import Engine, House
from infra.bench.report import Figures
from infra.errors import EngineError

CORRAL, DIRECT, ONE_SLOT = "corral", "direct", "one_slot"
ANY_SLOT = -1
ONE_SLOT_FLAGS = ("-np", "1")


@dataclass(frozen=True, slots=True)
class Team:
    """Agents that ask at once: their prompts are evenly spread from the least to the most words."""

    agents: int = 4
    least_words: int = 500
    most_words: int = 2000
    output_tokens: int = 500
    stop: tuple[str, ...] = ()

    def prompt(self, seed: str, agent: int) -> str:
        """What one agent asks in one round; no system text, which not every template shows to the model."""
        step = (self.most_words - self.least_words) / max(1, self.agents - 1)
        fresh = words(f"{seed} {agent}", round(self.least_words + agent * step))
        return f"{seed} {agent} {fresh}. Please say {self.output_tokens} words."


def main(
    start: Annotated[bool, typer.Option("--start", help="Start a broker, an API and a worker for this run.")] = False,
    model: Annotated[str, typer.Option(help="With --start: a GGUF file, or demo.")] = "demo",
    corral: Annotated[str, typer.Option(help="A Corral that runs, as http://HOST:PORT.")] = "http://127.0.0.1:8000",
    key: Annotated[str, typer.Option(help="Its key, if it wants one.")] = "",
    agents: Annotated[int, typer.Option(min=1, help="Agents that ask at once.")] = 4,
    least: Annotated[int, typer.Option(min=1, help="Words of the shortest prompt.")] = 500,
    most: Annotated[int, typer.Option(min=1, help="Words of the longest prompt.")] = 2000,
    output_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 500,
    stop: Annotated[list[str] | None, typer.Option(help="Stop words that Corral adds for this model.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of every side.")] = 5,
    slots: Annotated[int, typer.Option(min=1, help="With --start: slots of the worker.")] = 4,
    context: Annotated[int, typer.Option(min=1, help="With --start: window of a slot.")] = 16_384,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Let a few agents ask at once, through Corral and past it, in turn."""
    command = report.command_line("infra.bench.together")
    print(f"$ {command}")
    team = Team(agents, least, most, output_tokens, tuple(stop or ()))
    with ExitStack() as parts:
        one_slot: Engine | None = None
        if start:
            house = parts.enter_context(houses.started(model, slots=slots, context_tokens=context, threads=1))
            print(f"Corral with {houses.settings_line(house)}")
            commands = agents_house.commands_of(house)
            (one_slot,) = parts.enter_context(agents_house.engines(commands, ONE_SLOT_FLAGS))
        else:
            house = houses.running(corral, key, "", None)
        figures = asyncio.run(measure(house, one_slot, team, rounds))
    report.show(f"{agents} agents at once, {rounds} rounds", [*figures.items()])
    report.save(json_file, command, figures)


async def measure(house: House, one_slot: Engine | None, team: Team, rounds: int) -> Figures:
    """The sides in turn, `rounds` times. Raises EngineError when a request fails."""
    sides = {CORRAL: Target(house.url, house.key, MESSAGES), DIRECT: Target(house.engine.url, house.engine.key, CHAT)}
    if one_slot is not None:
        sides[ONE_SLOT] = Target(one_slot.url, one_slot.key, CHAT)
    outcomes: dict[str, list[Outcome]] = {name: [] for name in sides}
    seed = secrets.token_hex(4)
    try:
        for number in range(-1, rounds):  # the first round warms up
            for name, target in sides.items():
                asks = (_ask(target, name, team, f"{seed} {name} {number}", agent) for agent in range(team.agents))
                answers = await asyncio.gather(*asks)
                outcomes[name] += answers if number >= 0 else []
    finally:
        for target in sides.values():
            await target.close()
    return {name: _figures(side) for name, side in outcomes.items()} | _ratios(outcomes)


async def _ask(target: Target, side: str, team: Team, seed: str, agent: int) -> Outcome:
    body: dict[str, Any] = {"max_tokens": team.output_tokens, "stream": True, "temperature": 0}
    body["messages"] = [{"role": "user", "content": team.prompt(seed, agent)}]
    headers = {"content-type": "application/json"}
    if side == CORRAL:
        body["model"] = "bench"
        headers["x-agent-id"] = f"agent{agent}"
    else:
        body |= {"id_slot": ANY_SLOT, "stream_options": {"include_usage": True}, "stop": team.stop}
    outcome = await target.ask(json.dumps(body).encode(), headers)
    if outcome.error:
        raise EngineError(f"a request of the bench failed: {outcome.error}")
    return outcome


def _figures(outcomes: Sequence[Outcome]) -> Figures:
    return {
        "mean_ms": _mean_ms([outcome.whole_s for outcome in outcomes]),
        "first_ms": _mean_ms([outcome.first_s for outcome in outcomes]),
        "tokens": [
            round(fmean(getattr(outcome, name) for outcome in outcomes))
            for name in ("prompt_tokens", "cached_tokens", "output_tokens")
        ],
    }


def _ratios(outcomes: dict[str, list[Outcome]]) -> Figures:
    """Corral's mean latency over each other side's, and where the difference to the same engine lies."""
    mean_s = {name: fmean(outcome.whole_s for outcome in side) for name, side in outcomes.items()}
    first_s = {name: fmean(outcome.first_s for outcome in side) for name, side in outcomes.items()}
    figures: Figures = {
        f"corral_to_{name}": round(mean_s[CORRAL] / mean_s[name], 3) for name in outcomes if name != CORRAL
    }
    before_s = first_s[CORRAL] - first_s[DIRECT]
    after_s = mean_s[CORRAL] - mean_s[DIRECT] - before_s
    return figures | {"added_ms": {"before_first_token": _ms(before_s), "after_it": _ms(after_s)}}


def _mean_ms(seconds: Sequence[float]) -> float:
    return _ms(fmean(seconds))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


if __name__ == "__main__":
    sys.exit(run(main))
