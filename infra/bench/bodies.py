"""Requests shaped like a coding agent's, in the gateway's form and in the engine's.

Owns: the proportions (three system blocks, 24 tools that make up most of the bytes, a history of tool turns that grows)
and the engine's form of the same conversation, written out here so that the engine alone can be asked the same.
Never: sends one. The same arguments give the same bytes; another `seed` gives other text everywhere.
"""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

TOOL_COUNT = 24
SYSTEM_SHARE = 0.08
FRAME_BYTES = 1_050  # what a body without tools has beside its system text
PROPERTIES = 6
RESULT_CHARS = 900
BETWEEN = "\n\n"

Json = dict[str, Any]
DescribedTool = tuple[str, str, Json]  # name, description, schema

_VOCABULARY = (
    "a an the of to in on for with by from at as is are be was will may must when where which path file line folder "
    "text number name value list result error command search match edit write read run test build task step agent "
    "model prompt token page web note plan branch commit change review question answer option default long short"
)
_WORDS = _VOCABULARY.split()
WORDS = len(_WORDS)  # that there are


@dataclass(frozen=True)
class Conversation:
    """One agent's conversation. `seed` is the run's: tools and system are shared by its agents, the task is not."""

    seed: str
    agent: str
    size_bytes: int = 80_000
    max_tokens: int = 32

    @property
    def headers(self) -> dict[str, str]:
        """Who asks, as Claude Code says it."""
        return session_headers(f"bench-{self.seed}-{self.agent}")

    def messages_body(self, turns: int, ask: str) -> bytes:
        """POST /v1/messages after `turns` tool turns; `ask` is the newest text of the user."""
        messages = [*self._opening(), *_flat(map(self._turn, range(turns))), _said("user", _text(ask))]
        session = self.headers["x-claude-code-session-id"]
        body = messages_frame(self.agent, session, self._rules, messages, self.max_tokens)
        body["tools"] = declared(self._tools)
        return _bytes(body)

    def chat_body(self, turns: int, ask: str, slot: int, stop: tuple[str, ...] = ()) -> bytes:
        """POST /v1/chat/completions of the engine: the same prompt, pinned to `slot`, streamed with its progress."""
        first = self._opening_texts()
        if not turns:
            first = (*first, ask)
        messages: list[Json] = [{"role": "user", "content": BETWEEN.join(first)}]
        for turn in range(turns):
            said, call, result = self._turn_parts(turn)
            function = {"name": call["name"], "arguments": json.dumps(call["input"])}
            calls = [{"id": call["id"], "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": said, "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if turns:
            messages.append({"role": "user", "content": ask})
        body = chat_frame(self._rules, self._tools, messages, self.max_tokens, slot) | {"timings_per_token": False}
        if stop:
            body["stop"] = list(stop)
        return _bytes(body)

    @cached_property
    def _rules(self) -> str:
        chars = int(self.size_bytes * SYSTEM_SHARE) if self._tools else self.size_bytes - FRAME_BYTES
        return prose(f"{self.seed} rules", chars)

    @cached_property
    def _tools(self) -> list[DescribedTool]:
        """None at all for a small body: those stand for side calls, and system text fills them."""
        chars = int(self.size_bytes * (1 - SYSTEM_SHARE)) - 3000
        if chars < TOOL_COUNT * 1200:
            return []
        return [tool(f"{self.seed} {number}", number, chars // TOOL_COUNT) for number in range(TOOL_COUNT)]

    def _opening_texts(self) -> tuple[str, ...]:
        context = f"<system-reminder>\n{prose(f'{self.seed} context', 240)}\n</system-reminder>"
        return context, f"Task of {self.agent}: {prose(f'{self.seed} {self.agent}', 200)}"

    def _opening(self) -> list[Json]:
        return [_said("user", *map(_text, self._opening_texts()))]

    def _turn_parts(self, turn: int) -> tuple[str, Json, str]:
        mark = f"{self.seed} {self.agent} {turn}"
        call = {"type": "tool_use", "id": f"toolu_{turn:024}", "name": "Tool0", "input": {"value0": prose(mark, 40)}}
        return prose(f"{mark} said", 80), call, prose(f"{mark} result", RESULT_CHARS)

    def _turn(self, turn: int) -> list[Json]:
        said, call, result = self._turn_parts(turn)
        answer = {"type": "tool_result", "tool_use_id": call["id"], "content": result}
        return [_said("assistant", _text(said), call), _said("user", answer)]


INTRODUCTION = "You are a coding agent that works in a terminal."


def session_headers(session: str) -> dict[str, str]:
    """Who asks, as Claude Code says it."""
    return {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-claude-code-session-id": session,
    }


def messages_frame(name: str, session: str, rules: str, messages: list[Json], max_tokens: int) -> Json:
    """A body of POST /v1/messages, but for its tools."""
    marked = {"cache_control": {"type": "ephemeral"}}
    return {
        "model": "bench",
        "max_tokens": max_tokens,
        "stream": True,
        "temperature": 0,
        "system": [
            _text(f"x-anthropic-billing-header: bench={name};"),
            {**_text(INTRODUCTION), **marked},
            {**_text(rules), **marked},
        ],
        "messages": messages,
        "metadata": {"user_id": json.dumps({"session_id": session})},
    }


def declared(tools: Iterable[DescribedTool]) -> list[Json]:
    """Tools as a client declares them."""
    return [{"name": name, "description": description, "input_schema": schema} for name, description, schema in tools]


def chat_frame(rules: str, tools: Sequence[DescribedTool], messages: list[Json], max_tokens: int, slot: int) -> Json:
    """A body of POST /v1/chat/completions that the engine renders to the prompt of such a `messages_frame`."""
    body: Json = {
        "messages": [{"role": "system", "content": BETWEEN.join((INTRODUCTION, rules))}, *messages],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "cache_prompt": True,
        "id_slot": slot,
        "temperature": 0,
    }
    if tools:
        functions = [
            {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
            for name, description, schema in tools
        ]
        body |= {"tools": functions, "tool_choice": "auto", "parallel_tool_calls": True}
    return body


def tool(seed: str, number: int, chars: int) -> DescribedTool:
    """Name, description and a schema of only such words as pass to the engine unchanged, in that order."""
    share = chars // (PROPERTIES + 3)
    properties: Json = {
        f"value{index}": {"description": prose(f"{seed} {index}", share - 60), "type": "string"}
        for index in range(PROPERTIES)
    }
    inner = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    properties["items"] = {"type": "array", "items": inner}
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["value0"],
        "additionalProperties": False,
    }
    return f"Tool{number}", prose(f"{seed} tool", 3 * share - 300), schema


def prose(seed: str, chars: int) -> str:
    """Plain English words, `chars` characters at most."""
    return words(seed, chars // 3 + 1)[: max(chars, 1)].strip()


def words(seed: str, count: int) -> str:
    """`count` plain English words."""
    return " ".join(random.Random(seed).choices(_WORDS, k=count))


def even_words(seed: str, count: int) -> str:
    """As `words`, but none comes again before all others came: so texts of one length have about the same tokens."""
    drawn, rounds = random.Random(seed), -(-count // WORDS)
    return " ".join([word for _ in range(rounds) for word in drawn.sample(_WORDS, WORDS)][:count])


def _said(role: str, *blocks: Json) -> Json:
    return {"role": role, "content": list(blocks)}


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _flat(groups: Iterable[list[Json]]) -> list[Json]:
    return [entry for group in groups for entry in group]


def _bytes(body: Json) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
