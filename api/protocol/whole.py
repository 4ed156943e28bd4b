"""The complete Message for a client that does not stream.

Owns: folding the events of one message into one object.
Never: rules of its own; whatever holds for the stream (`events`) holds here.
"""

from collections.abc import Iterable
from typing import Any

import orjson

from api.protocol.events import Event, EventBuilder
from scheduler.contract import Delta

# The kind of a content_block_delta -> the field of the block that it adds to.
_FIELD_OF = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


def whole_message(message_id: str, model: str, deltas: Iterable[Delta]) -> dict[str, Any]:
    """The Message that the stream of `deltas` would add up to. Raises nothing; `Failed` is the caller's to tell."""
    builder = EventBuilder(message_id, model)
    events = [*builder.start(0, 0), *(event for delta in deltas for event in builder.feed(delta))]
    message: dict[str, Any] = events[0]["message"]
    message["content"] = _content(events)
    for event in events:
        if event["type"] == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
    return message


def _content(events: Iterable[Event]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    parts: list[dict[str, list[str]]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            parts.append({})
        elif event["type"] == "content_block_delta":
            field = _FIELD_OF[event["delta"]["type"]]
            parts[-1].setdefault(field, []).append(event["delta"].get(field, ""))
    return [_filled(block, pieces) for block, pieces in zip(blocks, parts, strict=True)]


def _filled(block: dict[str, Any], pieces: dict[str, list[str]]) -> dict[str, Any]:
    joined = {field: "".join(texts) for field, texts in pieces.items()}
    if "partial_json" in joined:
        return block | {"input": _object(joined["partial_json"])}
    return block | joined


def _object(arguments: str) -> dict[str, Any]:
    """Calls arrive complete and valid. One that is not shows itself under a name of its own and is never lost."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"unreadable_arguments": arguments}
