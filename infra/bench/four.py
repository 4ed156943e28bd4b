"""A few agents at once: their mean latency when they are served side by side, and when one is served at a time.

    corral bench four --start --model PATH      starts all it needs, ends it again
    corral bench four --url URL                 asks whoever runs there
    corral bench four --compare URL URL         each in turn, A B A B

Owns: the command line and the arms. With --start: Corral, its engine asked directly without a slot's number (as a
client without Corral asks), and the same engine with one slot, which is a queue in front of an engine that serves one
at a time. With --url: the address with all at once, and with one at a time, the others waiting at the bench.
Never: judges a figure.

Each round brings new prompts to every arm, so that nobody finds a cache and all do the same work.
"""

import asyncio
import json
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from time import perf_counter
from typing import Annotated, Any

import typer

from infra.bench import agents_house, compare, report
from infra.bench import house as houses
from infra.bench.address import Address, address, check_answers, compared
from infra.bench.asking import CHAT, MESSAGES, Outcome, Target, same_work
from infra.bench.bodies import words
from infra.bench.command import DEFAULT_URL, Compare, JsonFile, More, SharedKey, Start, StartedModel, Url, run
from infra.bench.progress import Told
from infra.bench.report import Figures

CORRAL, DIRECT, ONE_SLOT = "corral", "engine", "engine, one slot"
ANY_SLOT = -1
ONE_SLOT_FLAGS = ("-np", "1")
ROWS = {
    "mean_ms": "whole answer, mean, ms",
    "longest_ms": "whole answer, the last to end, ms",
    "first_ms": "first token, mean, ms",
    "after_first_ms": "after the first token, mean, ms",
    "prompt_tokens": "prompt tokens, mean",
    "output_tokens": "output tokens, mean",
}


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


@dataclass(frozen=True, slots=True)
class Arm:
    """An address, and how many of the team may be under way there at once."""

    address: Address
    at_once: int


def main(
    more: More = None,
    start: Start = False,
    model: StartedModel = "demo",
    url: Url = DEFAULT_URL,
    compare_urls: Compare = None,
    key: SharedKey = "",
    agents: Annotated[int, typer.Option(min=1, help="Agents that ask at once.")] = 4,
    least: Annotated[int, typer.Option(min=1, help="Words of the shortest prompt.")] = 500,
    most: Annotated[int, typer.Option(min=1, help="Words of the longest prompt.")] = 2000,
    output_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 500,
    stop: Annotated[list[str] | None, typer.Option(help="Stop words that Corral adds for this model.")] = None,
    rounds: Annotated[int, typer.Option("--repeat", "--rounds", min=1, help="Rounds over all arms.")] = 5,
    slots: Annotated[int, typer.Option(min=1, help="With --start: slots of the worker.")] = 4,
    context: Annotated[int, typer.Option(min=1, help="With --start: window of a slot.")] = 16_384,
    json_file: JsonFile = None,
) -> None:
    """Let a few agents ask at once."""
    command = report.command_line("infra.bench.four")
    team = Team(agents, least, most, output_tokens, tuple(stop or ()))
    chosen = compared(compare_urls, more, key, start=start)
    print(f"$ {command}")
    with _started(model, team, slots, context) if start else _running(chosen or (address(url, key),), team) as arms:
        runs = asyncio.run(measure(arms, team, rounds))
    compare.show(f"{agents} agents at once, {rounds} rounds", runs, ROWS)
    report.save(json_file, command, compare.as_json(runs))
    compare.judge(runs)


async def measure(arms: dict[str, Arm], team: Team, rounds: int) -> dict[str, list[Figures]]:
    """The arms in turn, `rounds` times, after one round that only warms up."""
    seed = secrets.token_hex(4)
    work = {name: partial(_round, arm, team, f"{seed} {name}") for name, arm in arms.items()}
    for warm_up in work.values():
        await warm_up(-1, lambda: None)
    return await compare.in_turn(work, rounds, team.agents)


@contextmanager
def _started(model: str, team: Team, slots: int, context: int) -> Iterator[dict[str, Arm]]:
    with houses.started(model, slots=slots, context_tokens=context, threads=1) as house:
        print(f"Corral with {houses.settings_line(house)}")
        with agents_house.engines(agents_house.commands_of(house), ONE_SLOT_FLAGS) as (one_slot,):
            found = (
                Address(CORRAL, house.url, house.key),
                Address(DIRECT, house.engine.url, house.engine.key, CHAT),
                Address(ONE_SLOT, one_slot.url, one_slot.key, CHAT),
            )
            yield {one.name: Arm(one, team.agents) for one in found}


@contextmanager
def _running(asked: Sequence[Address], team: Team) -> Iterator[dict[str, Arm]]:
    for one in asked:
        check_answers(one.url)
    arms = {one.name: Arm(one, team.agents) for one in asked}
    if len(asked) == 1:
        arms = {"all at once": Arm(asked[0], team.agents), "one at a time": Arm(asked[0], 1)}
    yield arms


async def _round(arm: Arm, team: Team, seed: str, number: int, told: Told) -> Figures:
    target, turns = arm.address.target(), asyncio.Semaphore(arm.at_once)

    async def ask(agent: int) -> Outcome:
        began_s = perf_counter()
        async with turns:
            waited_s = perf_counter() - began_s
            outcome = await _ask(target, arm.address.path, team, f"{seed} {number}", agent)
        told()
        # What an agent waits for its turn at the bench is its wait as well.
        return replace(outcome, first_s=outcome.first_s + waited_s, whole_s=outcome.whole_s + waited_s)

    try:
        return _figures(await asyncio.gather(*map(ask, range(team.agents))))
    finally:
        await target.close()


async def _ask(target: Target, path: str, team: Team, seed: str, agent: int) -> Outcome:
    body: dict[str, Any] = {"max_tokens": team.output_tokens, "stream": True, "temperature": 0, "model": "bench"}
    body["messages"] = [{"role": "user", "content": team.prompt(seed, agent)}]
    headers = {"content-type": "application/json"}
    if path == MESSAGES:
        headers |= {"x-agent-id": f"agent{agent}", "anthropic-version": "2023-06-01"}
    else:
        body |= {"id_slot": ANY_SLOT, "stream_options": {"include_usage": True}, "stop": team.stop}
    return await target.ask(json.dumps(body).encode(), headers)


def _figures(outcomes: Sequence[Outcome]) -> Figures:
    """Means over the team's answers."""
    fine = [outcome for outcome in outcomes if outcome.fine]
    found: Figures = {"requests": len(outcomes), "failed": len(outcomes) - len(fine)}
    if fine:
        whole, first = fmean(o.whole_s for o in fine), fmean(o.first_s for o in fine)
        found |= {"mean_ms": _ms(whole), "longest_ms": _ms(max(o.whole_s for o in fine))}
        found |= {"first_ms": _ms(first), "after_first_ms": _ms(whole - first)}
        found |= same_work(fine)
    if len(fine) < len(outcomes):
        found["errors"] = dict(Counter(outcome.error for outcome in outcomes if not outcome.fine))
    return found


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


if __name__ == "__main__":
    sys.exit(run(main))
