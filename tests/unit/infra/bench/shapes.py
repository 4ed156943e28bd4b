"""Shapes as a gateway tells them, for the tests of traces. Never: a test."""

from typing import Any

from infra.bench.shaping import Shaping
from infra.bench.trace import Trace

CHARS_A_TOKEN = 4


def shape(conversation: str, pieces: list[tuple[str, int]], ended_s: float, **changes: Any) -> dict[str, Any]:
    total = sum(size for _, size in pieces) // CHARS_A_TOKEN
    said = {
        "ended_s": 100.0 + ended_s,
        "took_ms": 500,
        "session": "aaaa",
        "agent": "bbbb",
        "conversation": conversation,
        "kind": "main",
        "tools": True,
        "pieces": [list(piece) for piece in pieces],
        "outcome": "done",
        "stop_reason": "tool_use",
        "level": 5,
        "prompt_tokens": total,
        "cached_tokens": 0,
        "output_tokens": 7,
        "queue_ms": 1,
        "first_ms": 100,
    }
    return said | changes


def traced(*shapes: dict[str, Any]) -> Trace:
    shaping = Shaping(100.0)
    return Trace([request for one in shapes if (request := shaping.request(one)) is not None])
