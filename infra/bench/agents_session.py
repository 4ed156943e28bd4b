"""Synthetic sessions of coding agents: who is there, what they say next, and how long they pause.

Owns: the draws (growth of each turn, pauses), the base that a kind of conversation shares, and a history.
Never: sends, measures, or knows a wire's form (`agents_bodies`).

Draws come from the run's seed, so that all arms of a run have the same turns and pauses; words come from the arm's
seed, so that no arm finds another arm's text in a cache.
"""

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

from infra.bench.bodies import INTRODUCTION, prose, tool, words

TOOL_SHARE = 0.9  # of a base's characters; the rest is system text
LEAST_TOOL_CHARS, MOST_TOOLS = 1300, 24
SUBAGENT_BASE, SUBAGENT_TURNS = 0.5, 3  # a subagent's base against the main line's, and how long it lives
SIDE_CHARS, SIDE_WORDS, SIDE_TOKENS = 300, (30, 90), 8
LONGEST_GAP = 4  # times the mean; a single long pause must not make the run's length
USUAL_LEVEL = 5

Tools = list[tuple[str, str, dict[str, Any]]]


class Kind(StrEnum):
    MAIN = "main"
    SUBAGENT = "subagent"
    SIDE = "side"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a run looks like. `words` bound a turn's new words; `gap_s` is the mean pause before a turn; `subagents`
    are those an agent starts in its life, `sides` its side calls per turn."""

    agents: int
    turns: int
    base_chars: int
    words: tuple[int, int]
    gap_s: float
    subagents: int
    sides: int
    max_tokens: int

    @property
    def life(self) -> str:
        """In words."""
        words = f"{self.agents} agents, {self.turns} turns, {self.words[0]}-{self.words[1]} new words each"
        words += f", pauses of {self.gap_s:g} s"
        words += f", {self.subagents} subagents" if self.subagents else ""
        return words + (f", {self.sides} side calls a turn" if self.sides else "")

    @property
    def requests(self) -> int:
        """All requests of an arm."""
        return self.agents * (self.turns * (1 + self.sides) + self.subagents * SUBAGENT_TURNS)


class Based(Protocol):
    """What a conversation begins with."""

    @property
    def rules(self) -> str: ...

    @property
    def tools(self) -> Tools: ...


@dataclass(frozen=True)
class Base:
    """System text and tools. All conversations of a kind share one."""

    seed: str
    chars: int
    with_tools: bool = True

    @cached_property
    def rules(self) -> str:
        share = 1 - TOOL_SHARE if self.tools else 1.0
        return prose(f"{self.seed} rules", int(self.chars * share) - len(INTRODUCTION))

    @cached_property
    def tools(self) -> Tools:
        """None for a side call, as in the real client."""
        if not self.with_tools:
            return []
        chars = int(self.chars * TOOL_SHARE)
        count = max(1, min(MOST_TOOLS, chars // LEAST_TOOL_CHARS))
        return [tool(f"{self.seed} {number}", number, max(LEAST_TOOL_CHARS, chars // count)) for number in range(count)]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the model; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Reply:
    """What the model said, as it goes back into the history."""

    text: str = ""
    thinking: str = ""
    signature: str = ""
    calls: list[Call] = field(default_factory=list)


@dataclass(slots=True)
class Talk:
    """One conversation: what was said so far, users' texts and replies in turn. `agent` and `number` (of a subagent or
    side call) say whose it is."""

    kind: Kind
    agent: int
    number: int
    session: str
    base: Based
    max_tokens: int
    history: list[str | Reply] = field(default_factory=list)
    level: int = USUAL_LEVEL

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.agent}-{self.number}"

    def say(self, text: str) -> None:
        self.history.append(text)

    def hear(self, reply: Reply) -> None:
        self.history.append(reply)

    def unsay(self) -> None:
        """Take back what got no answer, so that the next turn is a turn."""
        self.history.pop()


class Cast:
    """The conversations of one arm, and what each says when."""

    def __init__(self, shape: Shape, draws: str, text: str) -> None:
        self.shape = shape
        self._draws, self._text = draws, text
        self.bases = {
            Kind.MAIN: Base(f"{text} main", shape.base_chars),
            Kind.SUBAGENT: Base(f"{text} subagent", int(shape.base_chars * SUBAGENT_BASE)),
            Kind.SIDE: Base(f"{text} side", SIDE_CHARS, with_tools=False),
        }

    def talk(self, kind: Kind, agent: int, number: int = 0) -> Talk:
        """A conversation that has not begun."""
        session = str(uuid.UUID(int=random.Random(f"{self._text} session {agent}").getrandbits(128)))
        max_tokens = SIDE_TOKENS if kind is Kind.SIDE else self.shape.max_tokens
        return Talk(kind, agent, number, session, self.bases[kind], max_tokens)

    def next_words(self, talk: Talk, turn: int) -> str:
        """The newest words of the user; the first turn's are told apart from other agents' by their first word."""
        bounds = SIDE_WORDS if talk.kind is Kind.SIDE else self.shape.words
        count = self._random("words", talk.name, turn).randint(*bounds)
        return f"{talk.name} {self._text}: {words(f'{self._text} {talk.name} {turn}', count)}"

    def gap_s(self, talk: Talk, turn: int) -> float:
        """The pause before this turn; it stands for a tool that runs, or for a human."""
        if not self.shape.gap_s:
            return 0.0
        drawn = self._random("gap", talk.name, turn).expovariate(1 / self.shape.gap_s)
        return min(drawn, LONGEST_GAP * self.shape.gap_s)

    def spawned_after(self, turn: int) -> Sequence[int]:
        """Numbers of the subagents that a main line starts after this turn; it waits for them."""
        turns, count = max(1, self.shape.turns - 1), self.shape.subagents
        return [number for number in range(count) if number * turns // count == turn]

    def _random(self, *of: object) -> random.Random:
        return random.Random(" ".join(map(str, (self._draws, *of))))
