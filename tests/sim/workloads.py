"""What is asked: agents as scripts, and how many of them make a given load.

Owns: the three workloads and their sizes. An agent is a generator: it yields a request and goes on when that is
answered, a number to let so many seconds pass, or a list of scripts to go on when all of them are done. So who waits
longer asks later, as real agents do. Each agent's answers have a usual length of their own.
Never: looks at a cluster: a script is the same under every policy.

Load is honest: the service seconds that the agents ask for with every cache found, over the seconds that they take when
nobody waits, over the slots. What a policy loses to caches that are gone comes on top.
"""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from random import Random

from scheduler.contract import Kind, Rates, StopReason
from scheduler.policy.lengths import Length
from tests.sim.request import Request

Script = Generator["Request | float | list[Script]", None, None]
SUMMARY_TOKENS = 3_000
FEWEST_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Draw:
    """A log-normal size or time: its median, and sigma of its logarithm."""

    median: float
    sigma: float

    @property
    def length(self) -> Length:
        return Length(math.log(self.median), self.sigma)

    def of(self, chance: Random, habits: float) -> "Draw":
        """The same with a median of somebody's own, by a factor whose logarithm has the deviation `habits`."""
        return Draw(self.median * chance.lognormvariate(0.0, habits), self.sigma)

    def tokens(self, chance: Random) -> int:
        return max(FEWEST_TOKENS, round(self.seconds(chance)))

    def seconds(self, chance: Random) -> float:
        return chance.lognormvariate(math.log(self.median), self.sigma)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a coding agent works. After `prompts` of a human, each followed by some calls of tools, its session ends."""

    base_tokens: int = 20_000
    subagent_base_tokens: int = 8_000
    window_tokens: int = 100_000
    prompts: int = 5
    calls: float = 10.0
    human: Draw = Draw(400, 1.0)
    result: Draw = Draw(700, 1.2)
    answer: Draw = Draw(200, 0.8)
    habits: float = 0.5
    gap_shortest_s: float = 0.5
    gap_longest_s: float = 10.0
    thought: Draw = Draw(90, 0.8)
    burst: int = 20
    burst_calls: float = 3.0


@dataclass(frozen=True, slots=True)
class Workload:
    """`script(seed, number, shape)` is the agent of that number."""

    name: str
    words: str
    script: Callable[[int, int, Shape], Script]


class Line:
    """One conversation that grows: the requests of a main line or of one subagent."""

    def __init__(self, seed: int, chance: Random, shape: Shape, agent: str, name: str, kind: Kind) -> None:
        self._chance = chance
        self._shape = shape
        self._agent = agent
        self._name = name
        self._kind = kind
        self._base = f"base-{kind.value}"
        self._base_tokens = shape.base_tokens if kind is Kind.MAIN else shape.subagent_base_tokens
        self._answer = shape.answer.of(Random(f"{seed} {agent} {kind.value} habits"), shape.habits)
        self._tokens = self._base_tokens
        self._kept = 0

    def ask(self, new_tokens: int, *, on: bool, last: bool = False) -> Script:
        """A turn after `new_tokens` came in; the model calls a tool (`on`) or ends its turn. Compacts a full window."""
        if self._tokens + new_tokens > self._shape.window_tokens:
            yield self._turn(FEWEST_TOKENS, on=True)
            self._tokens, self._kept = self._base_tokens + SUMMARY_TOKENS, self._base_tokens
        yield self._turn(new_tokens, on=on, last=last)

    def gap_s(self) -> float:
        """How long a tool takes: any order of magnitude alike."""
        shape = self._shape
        return math.exp(self._chance.uniform(math.log(shape.gap_shortest_s), math.log(shape.gap_longest_s)))

    def _turn(self, new_tokens: int, *, on: bool, last: bool = False) -> Request:
        prompt, output = self._tokens + new_tokens, self._answer.tokens(self._chance)
        request = Request(
            self._agent, self._name, self._kind, self._base, self._base_tokens, prompt, self._kept, output,
            StopReason.TOOL_USE if on else StopReason.END_TURN, self._answer.length, last=last,
        )  # fmt: skip
        self._tokens = self._kept = prompt + output
        return request


def _working(line: Line, chance: Random, shape: Shape, calls: float, *, last: bool) -> Script:
    """A prompt, some calls of tools (`calls` in the mean), and the end of the turn."""
    new_tokens = shape.human.tokens(chance)
    while chance.random() < calls / (calls + 1):
        yield from line.ask(new_tokens, on=True)
        yield line.gap_s()
        new_tokens = shape.result.tokens(chance)
    yield from line.ask(new_tokens, on=False, last=last)


def session(seed: int, number: int, shape: Shape) -> Script:
    """Workload 1: one line of Claude Code, with its human."""
    name = f"agent{number}"
    chance = Random(f"{seed} {name}")
    line = Line(seed, chance, shape, name, name, Kind.MAIN)
    for prompt in range(shape.prompts):
        last = prompt == shape.prompts - 1
        yield from _working(line, chance, shape, shape.calls, last=last)
        if not last:
            yield shape.thought.seconds(chance)


def bursting(seed: int, number: int, shape: Shape) -> Script:
    """An agent that, after each prompt but the last, sends out subagents and waits for all."""
    name = f"agent{number}"
    chance = Random(f"{seed} {name}")
    line = Line(seed, chance, shape, name, name, Kind.MAIN)
    for prompt in range(shape.prompts - 1):
        yield from line.ask(shape.human.tokens(chance), on=True)
        yield [_subagent(seed, f"{name}/{prompt}.{child}", name, shape) for child in range(shape.burst)]
        yield from _working(line, chance, shape, shape.calls / 2, last=False)
        yield shape.thought.seconds(chance)
    yield from _working(line, chance, shape, shape.calls, last=True)


def _subagent(seed: int, name: str, agent: str, shape: Shape) -> Script:
    chance = Random(f"{seed} {name}")
    line = Line(seed, chance, shape, agent, name, Kind.SUBAGENT)
    yield chance.random()
    yield from _working(line, chance, shape, shape.burst_calls, last=True)


def bursts(seed: int, number: int, shape: Shape) -> Script:
    """Workload 2: one agent in four sends out bursts of subagents."""
    return bursting(seed, number, shape) if number % 4 == 0 else session(seed, number, shape)


CHAT_PROMPT = Draw(300, 0.8)
CHAT_ANSWER = Draw(120, 0.8)
CHAT_THOUGHT = Draw(20, 0.7)
CHATS = 40


def chatting(seed: int, number: int, _: Shape) -> Script:
    """Somebody without identity: short questions, each on its own. All such callers are one agent to the scheduler."""
    chance = Random(f"{seed} chat{number}")
    for chat in range(CHATS):
        yield CHAT_THOUGHT.seconds(chance)
        prompt = CHAT_PROMPT.tokens(chance)
        yield Request(
            "house", f"chat{number}.{chat}", Kind.MAIN, "none", 0, prompt, 0, CHAT_ANSWER.tokens(chance),
            StopReason.END_TURN, CHAT_ANSWER.length, identified=False, last=True,
        )  # fmt: skip


def mixed(seed: int, number: int, shape: Shape) -> Script:
    """Workload 3: as many who chat as there are agents; one agent in eight sends out bursts."""
    if number % 2:
        return chatting(seed, number, shape)
    return bursting(seed, number, shape) if number % 16 == 0 else session(seed, number, shape)


SESSIONS = Workload("sessions", "Claude-Code-like sessions", session)
BURSTS = Workload("bursts", "bursts of 20 subagents beside single lines", bursts)
MIXED = Workload("mixed", "agents, some with bursts, and short chats without identity", mixed)
WORKLOADS = (SESSIONS, BURSTS, MIXED)


@dataclass(frozen=True, slots=True)
class Alone:
    """What a script takes when nobody else is there and every cache is found."""

    service_s: float = 0.0
    lasts_s: float = 0.0
    requests: int = 0


def alone(script: Script, rates: Rates) -> Alone:
    """Goes through a script, which is used up."""
    total = Alone()
    for step in script:
        if isinstance(step, Request):
            service_s = (step.prompt_tokens - max(step.kept_tokens, step.base_tokens)) / rates.prefill_tokens_per_s
            service_s += step.output_tokens / rates.decode_tokens_per_s
            total = Alone(total.service_s + service_s, total.lasts_s + service_s, total.requests + 1)
        elif isinstance(step, list):
            children = [alone(child, rates) for child in step]
            total = Alone(
                total.service_s + sum(child.service_s for child in children),
                total.lasts_s + max(child.lasts_s for child in children),
                total.requests + sum(child.requests for child in children),
            )
        else:
            total = replace(total, lasts_s=total.lasts_s + step)
    return total


def agents_for(load: float, slots: int, rates: Rates, workload: Workload, seed: int, shape: Shape) -> list[Alone]:
    """What each of the first agents of the workload asks, so many that together they ask for `load` times what the
    slots can serve."""
    agents: list[Alone] = []
    asked = 0.0
    while asked < load * slots:
        agents.append(alone(workload.script(seed, len(agents), shape), rates))
        asked += agents[-1].service_s / agents[-1].lasts_s
    return agents
