"""How the bench itself shares conversations among engines that are asked directly.

Owns: three policies that a simple router could have. All are pure: what they know is who asks and how much runs where.
Never: sends. Never two requests in one fixed slot at once: that is the caller's lock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from infra.bench.agents_session import Kind, Shape, Talk

ANY_SLOT = -1


@dataclass(frozen=True, slots=True)
class Place:
    """An engine, and a slot of it; with ANY_SLOT the engine chooses by itself."""

    engine: int
    slot: int = ANY_SLOT


class Policy(Protocol):
    """Where a request goes. `running` are the requests that run on each engine now."""

    def place(self, talk: Talk, running: Sequence[int]) -> Place: ...


class RoundRobin:
    """Each request to the next engine."""

    def __init__(self) -> None:
        self._numbers = count()

    def place(self, talk: Talk, running: Sequence[int]) -> Place:  # noqa: ARG002  # the policy's form
        return Place(next(self._numbers) % len(running))


class LeastLoaded:
    """The engine with the fewest running requests; among equals the next in turn."""

    def __init__(self) -> None:
        self._numbers = count()

    def place(self, talk: Talk, running: Sequence[int]) -> Place:  # noqa: ARG002  # the policy's form
        first = next(self._numbers)
        turn = [(first + step) % len(running) for step in range(len(running))]
        return Place(min(turn, key=lambda engine: running[engine]))


class Pinned:
    """Agent i, its subagents and its side calls on engine i modulo the engines.

    While an engine has a slot for each of its conversations, and one more for side calls if there are any, each has its
    own for good. When they do not suffice, only the engine is fixed and it chooses its slots by itself.
    """

    def __init__(self, shape: Shape, engines: int, slots: int) -> None:
        self._engines = engines
        self._per_agent = 1 + shape.subagents
        self._scratch = slots - 1
        agents_of_one = -(-shape.agents // engines)
        self.fixed = agents_of_one * self._per_agent + bool(shape.sides) <= slots

    def place(self, talk: Talk, running: Sequence[int]) -> Place:  # noqa: ARG002  # the policy's form
        engine = talk.agent % self._engines
        if not self.fixed:
            return Place(engine)
        if talk.kind is Kind.SIDE:
            return Place(engine, self._scratch)
        own = 1 + talk.number if talk.kind is Kind.SUBAGENT else 0
        return Place(engine, talk.agent // self._engines * self._per_agent + own)


POLICIES = ("round-robin", "least-loaded", "pinned")


def policy(name: str, shape: Shape, engines: int, slots: int) -> Policy:
    """A new one, by its name of POLICIES."""
    made: Mapping[str, Policy] = {
        "round-robin": RoundRobin(),
        "least-loaded": LeastLoaded(),
        "pinned": Pinned(shape, engines, slots),
    }
    return made[name]
