"""A synthetic conversation as a request, in the gateway's form and in the engine's, and a stream back into a reply.

Owns: both forms of one history, written so that both render to the same prompt, and reading what the model said.
Never: sends, draws.
"""

from typing import Any

import orjson

from infra.bench import bodies
from infra.bench.agents_session import USUAL_LEVEL, Call, Kind, Reply, Talk

Json = dict[str, Any]

NOTHING_MORE = "done"  # what a second tool call of a turn gets


def headers(talk: Talk) -> dict[str, str]:
    """Who asks, as the real client says it."""
    who = bodies.session_headers(talk.session)
    if talk.kind is Kind.SUBAGENT:
        who["x-claude-code-agent-id"] = f"bench-{talk.session[:8]}-{talk.number}"
    if talk.level != USUAL_LEVEL:
        who["x-priority"] = str(talk.level)
    return who


def messages_body(talk: Talk) -> bytes:
    """POST /v1/messages."""
    base = talk.base
    body = bodies.messages_frame(talk.name, talk.session, base.rules, _messages(talk), talk.max_tokens)
    if base.tools:
        body["tools"] = bodies.declared(base.tools)
    return orjson.dumps(body)


def chat_body(talk: Talk, slot: int) -> bytes:
    """POST /v1/chat/completions of an engine: the same prompt; `slot` -1 lets the engine choose."""
    base = talk.base
    return orjson.dumps(bodies.chat_frame(base.rules, base.tools, _chat_messages(talk), talk.max_tokens, slot))


class Hearing:
    """Reads the chunks of one stream, in either form, into a reply."""

    def __init__(self) -> None:
        self.reply = Reply()

    def chunk(self, chunk: Json) -> None:
        if chunk.get("type") == "content_block_start" and chunk["content_block"]["type"] == "tool_use":
            self._call(chunk["content_block"]["id"], chunk["content_block"]["name"], "")
        elif chunk.get("type") == "content_block_delta":
            self._block_delta(chunk["delta"])
        elif chunk.get("choices"):
            self._chat_delta(chunk["choices"][0].get("delta") or {})

    def _block_delta(self, delta: Json) -> None:
        self.reply.text += delta.get("text", "")
        self.reply.thinking += delta.get("thinking", "")
        self.reply.signature += delta.get("signature", "")
        if "partial_json" in delta:
            self._continue(delta["partial_json"])

    def _chat_delta(self, delta: Json) -> None:
        self.reply.text += delta.get("content") or ""
        self.reply.thinking += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or []:
            function = call.get("function") or {}
            if call.get("id"):
                self._call(call["id"], function.get("name", ""), function.get("arguments", ""))
            else:
                self._continue(function.get("arguments", ""))

    def _call(self, call_id: str, name: str, arguments: str) -> None:
        self.reply.calls.append(Call(call_id, name, arguments))

    def _continue(self, arguments: str) -> None:
        last = self.reply.calls.pop()
        self._call(last.id, last.name, last.arguments + arguments)


def _messages(talk: Talk) -> list[Json]:
    messages: list[Json] = []
    calls: list[Call] = []
    for said in talk.history:
        if isinstance(said, Reply):
            messages.append({"role": "assistant", "content": _blocks(said)})
            calls = said.calls
        else:
            messages.append({"role": "user", "content": _results(calls, said) or [{"type": "text", "text": said}]})
    # The marker moves with each turn, as the real client's does.
    messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return messages


def _blocks(reply: Reply) -> list[Json]:
    blocks: list[Json] = []
    if reply.thinking:
        blocks.append({"type": "thinking", "thinking": reply.thinking, "signature": reply.signature})
    if reply.text:
        blocks.append({"type": "text", "text": reply.text})
    calls = ({"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call)} for call in reply.calls)
    return [*blocks, *calls]


def _results(calls: list[Call], text: str) -> list[Json]:
    return [
        {"type": "tool_result", "tool_use_id": call.id, "content": NOTHING_MORE if index else text}
        for index, call in enumerate(calls)
    ]


def _chat_messages(talk: Talk) -> list[Json]:
    messages: list[Json] = []
    calls: list[Call] = []
    for said in talk.history:
        if isinstance(said, Reply):
            messages.append(_assistant(said))
            calls = said.calls
        elif calls:
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": NOTHING_MORE if index else said}
                for index, call in enumerate(calls)
            ]
        else:
            messages.append({"role": "user", "content": said})
    return messages


def _assistant(reply: Reply) -> Json:
    message: Json = {"role": "assistant", "content": reply.text}
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    return message


def _input(call: Call) -> Json:
    """What a cut call said cannot be given back, and counts as none."""
    try:
        value = orjson.loads(call.arguments or "{}")
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
