"""Rows with one engine: the time that a side adds to the first token, requests a second, four at once, memory.

Owns: the order A B A B over all sides inside one run, and that a side which fails a row leaves it with its error.
Never: starts anything.

All sides are sent the same form of request at POST /v1/messages, the engine itself too; texts differ from side to side,
so that nobody finds another one's cache, and each conversation is asked once unmeasured.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from itertools import count
from statistics import fmean, median

import orjson
import psutil

from infra.bench.asking import MESSAGES, Outcome, Target, side_by_side
from infra.bench.bodies import Conversation, session_headers
from infra.bench.four import Team
from infra.bench.latency import GROWTH, PAIRS_A_TURN, Load
from infra.bench.peers.sides import LLAMA_SERVER, Side
from infra.bench.report import Figures, percentile
from infra.errors import EngineError

MEGABYTE = 2**20
ROUNDS = 2

Told = Callable[[str], None]
Found = dict[str, Figures]  # by the side's name; {"error": words} for one that could not


class Asked:
    """A side that is asked. What fails is asked once more, as any client would, and counted; the time of both is the
    request's."""

    def __init__(self, name: str, target: Target) -> None:
        self.name, self.target, self.repeated = name, target, 0

    async def ask(self, body: bytes, headers: dict[str, str]) -> Outcome:
        """Raises EngineError when a request fails twice."""
        outcome = await self.target.ask(body, headers)
        if outcome.error:
            self.repeated, lost_s = self.repeated + 1, outcome.whole_s
            outcome = await self.target.ask(body, headers)
            outcome = replace(outcome, first_s=outcome.first_s + lost_s, whole_s=outcome.whole_s + lost_s)
        if outcome.error:
            raise EngineError(outcome.error)
        return outcome


Row = Callable[[Asked], Awaitable[None]]


class Field:
    """The sides that still stand in a row."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        self.standing = list(asked)
        self.errors: Found = {}

    async def each(self, work: Row) -> None:
        """`work` for one side after another; who fails is out."""
        for side in tuple(self.standing):
            try:
                await work(side)
            except EngineError as error:
                self.standing.remove(side)
                self.errors[side.name] = {"error": str(error)}

    def found(self, figures: Callable[[str], Figures]) -> Found:
        """The figures of who still stands, and the errors of the others."""
        return {side.name: figures(side.name) | {"repeated": side.repeated} for side in self.standing} | self.errors


async def first_token(sides: Sequence[Side], load: Load, rounds: int, told: Told) -> Found:
    """Milliseconds to the first token of each side, and how many more than the engine's in the same round."""
    first_s: dict[str, list[float]] = {side.name: [] for side in sides}
    async with AsyncExitStack() as stack:
        field = Field(await _asked(sides, stack))
        talks = {side.name: load.of_arm(side.name).conversation("first") for side in sides}
        numbers = count(1)
        for number in range(rounds):
            told(f"first token, {load.size_bytes:,} bytes: round {number + 1} of {rounds}")
            turns = number // PAIRS_A_TURN % GROWTH

            async def ask(side: Asked, turns: int = turns, new: bool = number % PAIRS_A_TURN == 0) -> None:
                if new:
                    await _ask(side, talks[side.name], turns, next(numbers))
                outcome = await _ask(side, talks[side.name], turns, next(numbers))
                first_s[side.name].append(outcome.first_s)

            await field.each(ask)
    return field.found(lambda name: _first_figures(first_s, name))


async def throughput(sides: Sequence[Side], load: Load, clients: int, requests: int, told: Told) -> Found:
    """Requests a second of each side, `ROUNDS` times in turn."""
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    numbers = count(1)
    async with AsyncExitStack() as stack:
        field = Field(await _asked(sides, stack))

        async def ask(side: Asked) -> None:
            told(f"requests a second: {side.name}")
            talks = [load.of_arm(side.name).conversation(f"client{client}") for client in range(clients)]

            async def one(client: int, _: int) -> Outcome:
                return await _ask(side, talks[client], 0, next(numbers))

            await side_by_side(one, clients, clients)
            _, took_s = await side_by_side(one, clients, requests)
            rates[side.name].append(requests / took_s)

        for _ in range(ROUNDS):
            await field.each(ask)
    return field.found(lambda name: _rate_figures(rates, name))


async def at_once(sides: Sequence[Side], team: Team, seed: str, rounds: int, told: Told) -> Found:
    """Mean milliseconds of an answer when a few agents ask at once, with prompts that nobody has seen."""
    whole_s: dict[str, list[float]] = {side.name: [] for side in sides}
    tokens: dict[str, list[int]] = {side.name: [] for side in sides}
    async with AsyncExitStack() as stack:
        field = Field(await _asked(sides, stack))
        for number in range(-1, rounds):  # the first round warms up

            async def ask(side: Asked, number: int = number) -> None:
                told(f"{team.agents} at once: {side.name}")

                async def one(agent: int, _: int) -> Outcome:
                    return await _ask_team(side, team, f"{seed} {side.name} {number}", agent)

                outcomes, _ = await side_by_side(one, team.agents, team.agents)
                if number >= 0:
                    whole_s[side.name] += [outcome.whole_s for outcome in outcomes]
                    tokens[side.name] += [outcome.output_tokens for outcome in outcomes]

            await field.each(ask)
    return field.found(lambda name: {"mean_ms": _ms(fmean(whole_s[name])), "output_tokens": round(fmean(tokens[name]))})


def memory(sides: Sequence[Side], engines: Collection[int]) -> Found:
    """Memory of the processes between client and engine, pages that they share counted once, in MiB."""
    return {
        side.name: {"mb": round(sum(map(_bytes, _tree(side.processes, engines))) / MEGABYTE)}
        for side in sides
        if side.processes
    }


def _tree(roots: Collection[int], without: Collection[int]) -> set[psutil.Process]:
    """Processes and all that they started, each once."""
    found: set[psutil.Process] = set()
    for pid in roots:
        with suppress(psutil.Error):
            root = psutil.Process(pid)
            found |= {root, *root.children(recursive=True)}
    return {process for process in found if process.pid not in without}


def _bytes(process: psutil.Process) -> int:
    try:
        full = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(full, "pss", full.rss))


async def _asked(sides: Sequence[Side], stack: AsyncExitStack) -> list[Asked]:
    asked = [Asked(side.name, Target(side.url, side.key, MESSAGES)) for side in sides]
    for side in asked:
        stack.push_async_callback(side.target.close)
    return asked


async def _ask(side: Asked, talk: Conversation, turns: int, number: int) -> Outcome:
    return await side.ask(talk.messages_body(turns, f"request {number:06}"), talk.headers)


async def _ask_team(side: Asked, team: Team, seed: str, agent: int) -> Outcome:
    body = team_body(team, seed, agent)
    return await side.ask(body, session_headers(f"{seed} {agent}"))


def team_body(team: Team, seed: str, agent: int) -> bytes:
    """One agent's request without system text, which not every template shows to the model."""
    return request_body(team.prompt(seed, agent), team.output_tokens)


def request_body(text: str, max_tokens: int) -> bytes:
    """POST /v1/messages of one text."""
    messages = [{"role": "user", "content": text}]
    return orjson.dumps(
        {"model": "bench", "max_tokens": max_tokens, "stream": True, "temperature": 0, "messages": messages}
    )


def _first_figures(first_s: Mapping[str, Sequence[float]], name: str) -> Figures:
    """Who stands in every round has as many times as the engine; the engine itself is compared with nobody."""
    figures: Figures = {"first_p50_ms": _ms(median(first_s[name]))}
    engine = first_s.get(LLAMA_SERVER, ())
    if name != LLAMA_SERVER and len(engine) == len(first_s[name]):
        added = [side - alone for side, alone in zip(first_s[name], engine, strict=True)]
        figures |= {"added_p50_ms": _ms(percentile(added, 0.5)), "added_p95_ms": _ms(percentile(added, 0.95))}
    return figures


def _rate_figures(rates: Mapping[str, Sequence[float]], name: str) -> Figures:
    figures: Figures = {"per_s": round(fmean(rates[name]), 1), "rounds": [round(rate, 1) for rate in rates[name]]}
    if rates.get(LLAMA_SERVER):
        figures["of_engine"] = round(fmean(rates[name]) / fmean(rates[LLAMA_SERVER]), 2)
    return figures


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
