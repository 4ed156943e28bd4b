"""The replay of one arm: every agent lives its life against one side.

Owns: the order of an agent's life (pause, turn beside its side calls, subagents, next turn) and both ways to ask: a
gateway, or engines among which the bench itself chooses.
Never: starts anything, judges a figure. A failed request is counted and not repeated.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

from infra.bench import agents_bodies as bodies
from infra.bench.agents_figures import Turn
from infra.bench.agents_routing import ANY_SLOT, Place, Policy
from infra.bench.agents_session import SUBAGENT_TURNS, Cast, Kind, Reply, Talk
from infra.bench.asking import CHAT, MESSAGES, Outcome, Target
from infra.bench.house import Engine
from infra.bench.progress import Told


class Side(Protocol):
    """Who is asked. `ask` sends the conversation as it stands; the name of the engine that answered comes along."""

    async def ask(self, talk: Talk) -> tuple[Outcome, Reply, str]: ...

    async def close(self) -> None: ...


class Gateway:
    """One address that speaks Anthropic Messages."""

    def __init__(self, url: str, key: str) -> None:
        self._target = Target(url, key, MESSAGES)

    async def ask(self, talk: Talk) -> tuple[Outcome, Reply, str]:
        hearing = bodies.Hearing()
        outcome = await self._target.ask(bodies.messages_body(talk), bodies.headers(talk), hearing.chunk)
        return outcome, hearing.reply, outcome.worker

    async def close(self) -> None:
        await self._target.close()


class Direct:
    """Engines asked directly, shared out by a policy."""

    def __init__(self, engines: Sequence[Engine], policy: Policy) -> None:
        self._targets = [Target(engine.url, engine.key, CHAT) for engine in engines]
        self._running = [0] * len(engines)
        self._policy = policy
        # Two requests at once for one fixed slot can make an engine stall.
        self._locks: dict[Place, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def ask(self, talk: Talk) -> tuple[Outcome, Reply, str]:
        place = self._policy.place(talk, self._running)
        body, hearing = bodies.chat_body(talk, place.slot), bodies.Hearing()
        target = self._targets[place.engine]
        self._running[place.engine] += 1
        try:
            if place.slot == ANY_SLOT:
                outcome = await target.ask(body, bodies.headers(talk), hearing.chunk)
            else:
                async with self._locks[place]:
                    outcome = await target.ask(body, bodies.headers(talk), hearing.chunk)
        finally:
            self._running[place.engine] -= 1
        return outcome, hearing.reply, str(place.engine)

    async def close(self) -> None:
        for target in self._targets:
            await target.close()


class Replay:
    """One arm. `told` is called after each request."""

    def __init__(self, cast: Cast, side: Side, told: Told) -> None:
        self._cast, self._side, self._told = cast, side, told
        self._turns: list[Turn] = []

    async def run(self) -> tuple[list[Turn], float]:
        """All requests of all agents, and the seconds from the first agent's start to the last one's end."""
        began_s = perf_counter()
        await asyncio.gather(*(self._live(agent) for agent in range(self._cast.shape.agents)))
        return self._turns, perf_counter() - began_s

    async def _live(self, agent: int) -> None:
        main = self._cast.talk(Kind.MAIN, agent)
        for turn in range(self._cast.shape.turns):
            await asyncio.gather(self._turn(main, turn), self._sides(agent, turn))
            await asyncio.gather(*(self._subagent(agent, number) for number in self._cast.spawned_after(turn)))

    async def _sides(self, agent: int, turn: int) -> None:
        """The side calls of one turn, one after another beside it. Each is a conversation of its own."""
        count = self._cast.shape.sides
        for number in range(turn * count, (turn + 1) * count):
            await self._turn(self._cast.talk(Kind.SIDE, agent, number), 0)

    async def _subagent(self, agent: int, number: int) -> None:
        talk = self._cast.talk(Kind.SUBAGENT, agent, number)
        for turn in range(SUBAGENT_TURNS):
            await self._turn(talk, turn)

    async def _turn(self, talk: Talk, turn: int) -> None:
        if talk.kind is not Kind.SIDE:
            await asyncio.sleep(self._cast.gap_s(talk, turn))
        talk.say(self._cast.next_words(talk, turn))
        outcome, reply, engine = await self._side.ask(talk)
        if outcome.fine:
            talk.hear(reply)
        else:
            talk.unsay()
        self._turns.append(Turn(talk.name, talk.kind, turn, outcome, engine))
        self._told()
