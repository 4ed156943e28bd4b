"""What a client may rely on in a stream, checked event by event and by no code of the builder.

Owns: the rules of a transcript and what it adds up to for a client.
Never: a delta, or a guess: any event it does not know is a fault.
"""

import json
from typing import Any

Event = dict[str, Any]

DELTAS_OF = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}
USAGE = {"input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"}


class Transcript:
    """A client's view of a stream. `take` each event; AssertionError says which rule it broke."""

    def __init__(self) -> None:
        self.message: Event = {}
        self.blocks: list[Event] = []
        self.open: Event | None = None
        self.error: Event | None = None
        self.final_deltas = 0
        self.stopped = False

    def take(self, event: Event) -> None:
        json.dumps(event, ensure_ascii=False).encode()
        assert not self.ended, f"{event['type']} after the end"
        getattr(self, f"_{event['type']}")(event)

    @property
    def ended(self) -> bool:
        return self.stopped or self.error is not None

    def check_ended_well(self) -> None:
        assert self.stopped
        called = any(block["type"] == "tool_use" for block in self.blocks)
        reason = self.message["stop_reason"]
        assert reason in {"end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"}
        assert called or reason != "tool_use"
        assert not (called and reason == "end_turn")
        assert (self.message["stop_sequence"] is not None) <= (reason == "stop_sequence")

    def _ping(self, event: Event) -> None:
        assert event == {"type": "ping"}

    def _error(self, event: Event) -> None:
        assert set(event) == {"type", "error", "request_id"}
        assert set(event["error"]) == {"type", "message"}
        self.error = event

    def _message_start(self, event: Event) -> None:
        assert not self.message, "a second message_start"
        self.message = event["message"]
        assert self.message["content"] == []
        assert self.message["stop_reason"] is None
        self._check_usage(self.message["usage"])

    def _content_block_start(self, event: Event) -> None:
        self._check_in_message()
        assert self.open is None, "two blocks open at once"
        assert event["index"] == len(self.blocks)
        self.open = dict(event["content_block"])
        fields = self.open.keys() - {"type", "id", "name"}
        assert not any(self.open[field] for field in fields), "a block does not begin empty"
        self.blocks.append(self.open)

    def _content_block_delta(self, event: Event) -> None:
        self._check_open(event)
        assert self.open is not None
        field = DELTAS_OF[self.open["type"]][event["delta"]["type"]]
        assert self.open.get("signature", "") == "", "a delta after the signature"
        self.open[field] = self.open.get(field, "") + event["delta"][field]

    def _content_block_stop(self, event: Event) -> None:
        self._check_open(event)
        block, self.open = self.open, None
        assert block is not None
        if block["type"] == "tool_use":
            block["input"] = json.loads(block.pop("partial_json"))
            assert isinstance(block["input"], dict)
            json.dumps(block["input"], ensure_ascii=False).encode()
        else:
            assert block[block["type"]].strip(), "a blank block"
        assert block["type"] != "thinking" or block["signature"]

    def _message_delta(self, event: Event) -> None:
        self._check_in_message()
        self._check_usage(event["usage"])
        self.message["usage"] = event["usage"]
        if event["delta"]["stop_reason"] is not None:
            assert self.open is None, "the end within a block"
            self.final_deltas += 1
            self.message |= event["delta"]

    def _message_stop(self, event: Event) -> None:
        assert self.final_deltas == 1
        assert event == {"type": "message_stop"}
        self.message["content"] = self.blocks
        self.stopped = True

    def _check_in_message(self) -> None:
        assert self.message, "no message_start yet"
        assert not self.final_deltas, "an event between the final message_delta and message_stop"

    def _check_open(self, event: Event) -> None:
        self._check_in_message()
        assert self.open is not None, "no block is open"
        assert event["index"] == len(self.blocks) - 1

    def _check_usage(self, usage: Event) -> None:
        assert set(usage) == USAGE
        assert all(count >= 0 for count in usage.values())
