"""Lines of agents in a closed loop: each asks, hears its answer, pauses as a tool would take, and asks again.

Owns: what a line is, its requests, and what became of each one, those cut off at the end included.
Never: judges a figure, starts a part.

An ask names the length of its answer ("say 40 words") and limits it to as many tokens, so that an engine which does as
it is told, and one which only obeys the limit, both do the same amount of work.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from infra.bench.asking import Outcome, Target
from infra.bench.bodies import words

Json = dict[str, Any]

CUT_OFF = "cut off at the end of the run"
TOOL: Json = {
    "name": "Bash",
    "description": "Run a command.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an agent. `fresh_tokens` of each prompt are new, about `output_tokens` come back.

    A line with `turns` is a conversation that grows by a tool turn a request, and starts over after as many; one
    without asks each time for something else. `key` is its API key, if it has one of its own.
    """

    agent: str
    name: str
    fresh_tokens: int
    output_tokens: int
    pause_s: float = 0.0
    level: int = 5
    subagent: bool = False
    turns: int = 0
    key: str = ""

    @property
    def headers(self) -> dict[str, str]:
        said = {"content-type": "application/json", "x-agent-id": self.agent, "x-priority": str(self.level)}
        if self.subagent:
            said["x-claude-code-agent-id"] = self.name
        if self.key:
            said["x-api-key"] = self.key
        return said

    def body(self, seed: str, number: int) -> bytes:
        """Its request `number`, from 0."""
        body: Json = {
            "model": "bench",
            "max_tokens": self.output_tokens + (16 if self.turns else 0),
            "stream": True,
            "system": f"You are the line {self.name} of the agent {self.agent} in the run {seed}.",
            "messages": self._turns(seed, number) if self.turns else [_user(self._ask(seed, number))],
        }
        if self.turns:
            body["tools"] = [TOOL]
        return json.dumps(body).encode()

    def _ask(self, seed: str, number: int) -> str:
        fresh = words(f"{seed} {self.agent} {self.name} {number}", self.fresh_tokens)
        return f"{number}: {fresh}. Now say {self.output_tokens} words{self._call(number) if self.turns else '.'}"

    @staticmethod
    def _call(number: int) -> str:
        return f' then call {TOOL["name"]} {{"command": "make step{number}"}}'

    def _turns(self, seed: str, number: int) -> list[Json]:
        first = number - number % self.turns
        messages = [_user(self._ask(seed, first))]
        for turn in range(first, number):
            name = f"toolu_{turn:024}"
            call = {"type": "tool_use", "id": name, "name": TOOL["name"], "input": {"command": f"make step{turn}"}}
            result = {"type": "tool_result", "tool_use_id": name, "content": "fine"}
            messages.append({"role": "assistant", "content": [_text(said(self.output_tokens)), call]})
            messages.append({"role": "user", "content": [result, _text(self._ask(seed, turn + 1))]})
        return messages


@dataclass(frozen=True, slots=True)
class Served:
    """One request of a line, sent `sent_s` after the run began."""

    line: Line
    sent_s: float
    outcome: Outcome

    @property
    def waited_s(self) -> float:
        """To its first text; of one that was cut off before it, as long as it had waited by then."""
        return self.outcome.first_s


class Run:
    """Lines at work on one target. `served` grows as answers end."""

    def __init__(self, target: Target, seed: str) -> None:
        self._target = target
        self._seed = seed
        self._began_s = perf_counter()
        self.served: list[Served] = []

    @asynccontextmanager
    async def at_work(self, lines: Sequence[Line]) -> AsyncIterator[None]:
        """The lines ask inside the block; at its end what still runs is hung up, and noted as cut off."""
        tasks = [asyncio.create_task(self._work(line)) for line in lines]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task

    async def for_seconds(self, lines: Sequence[Line], seconds: float) -> list[Served]:
        """What the lines were served within `seconds`."""
        async with self.at_work(lines):
            await asyncio.sleep(seconds)
        return self.served

    async def some(self, line: Line, first: int, count: int) -> list[Served]:
        """The requests `first` and on of one line, `count` of them, with its pauses."""
        served = []
        for number in range(first, first + count):
            served.append(await self._ask(line, number))
            await asyncio.sleep(line.pause_s)
        return served

    async def _work(self, line: Line) -> None:
        number = 0
        while True:
            served = await self._ask(line, number)
            # A refused client waits as it is told to.
            await asyncio.sleep(max(line.pause_s, served.outcome.retry_after_s))
            number += 1

    async def _ask(self, line: Line, number: int) -> Served:
        sent_s = perf_counter()
        first_s: list[float] = []

        def hear(chunk: Json) -> None:
            if not first_s and chunk.get("type") == "content_block_delta":
                first_s.append(perf_counter() - sent_s)

        try:
            outcome = await self._target.ask(line.body(self._seed, number), line.headers, hear)
        except asyncio.CancelledError:
            lasted_s = perf_counter() - sent_s
            outcome = Outcome(first_s=first_s[0] if first_s else lasted_s, whole_s=lasted_s, error=CUT_OFF)
            self.served.append(Served(line, sent_s - self._began_s, outcome))
            raise
        served = Served(line, sent_s - self._began_s, outcome)
        self.served.append(served)
        return served


def said(count: int) -> str:
    """What an engine answers that was asked to say `count` words and does."""
    return " ".join(f"w{number}" for number in range(1, count + 1))


def _user(content: str) -> Json:
    return {"role": "user", "content": content}


def _text(words_said: str) -> Json:
    return {"type": "text", "text": words_said}
