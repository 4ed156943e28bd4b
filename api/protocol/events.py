"""Deltas in, Anthropic stream events out.

Owns: the order of events. `message_start`; blocks one at a time, numbered from 0, each with one start and one stop;
`message_delta` with the stop reason and usage; `message_stop`. Or an `error`, which ends everything.
Never: bytes (`sse`), time, where the deltas come from. Pure, and the same for streamed and whole answers.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any, Literal

from api.protocol.body import clean_json, clean_text
from scheduler.contract import Delta, Failed, Finished, Started, StopReason, TextDelta, ThinkingDelta, ToolCall

Event = dict[str, Any]
Kind = Literal["text", "thinking"]

# Clients expect a signature before a thinking block ends and send it back unread; nothing here checks it.
SIGNATURE = "Y29ycmFs"
HIGH_SURROGATES = ("\ud800", "\udbff")


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """The deltas with neighbouring pieces of one kind as one: what came together leaves as one event.

    A fast model's answer comes in dozens of tokens at once, and an event costs more than the text in it.
    """
    runs = ((kind, list(run)) for kind, run in groupby(deltas, type))
    return [delta for kind, run in runs for delta in (_as_one(run) if kind in (TextDelta, ThinkingDelta) else run)]


def _as_one(run: list[Delta]) -> list[Delta]:
    pieces = [delta for delta in run if isinstance(delta, TextDelta | ThinkingDelta)]
    return run if len(run) == 1 else [type(pieces[0])("".join(piece.text for piece in pieces))]


class EventBuilder:
    """The events of one message. Feed it deltas in order; each call returns the events to send now, maybe none."""

    def __init__(self, message_id: str, model: str) -> None:
        self._message_id = message_id
        self._model = model
        self._started = False
        self._done = False
        self._blocks = 0
        self._open: Kind | None = None
        # Text of the kind `_held_kind` that may not go out yet: leading blanks, or half a code point.
        self._held = ""
        self._held_kind: Kind = "text"
        self._tool_sent = False
        self._input_tokens = 0
        self._cached_tokens = 0
        self._output_tokens = 0

    @property
    def done(self) -> bool:
        """True after the last event; nothing comes out any more."""
        return self._done

    def start(self, input_tokens: int, cached_tokens: int) -> list[Event]:
        """`message_start`, once; later calls give nothing. `input_tokens` leaves out the cached ones."""
        if self._started or self._done:
            return []
        self._started = True
        self._input_tokens, self._cached_tokens = input_tokens, cached_tokens
        message: Event = {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }
        return [{"type": "message_start", "message": message}]

    def feed(self, delta: Delta) -> list[Event]:
        """The events of one delta. `Failed` gives none: its words are the caller's, who then calls `fail`."""
        if self._done or isinstance(delta, Failed):
            return []
        match delta:
            case Started(prompt_tokens=prompt, cached_tokens=cached):
                return self._on_started(prompt, cached)
            case TextDelta(text=text):
                return self._on_text("text", text)
            case ThinkingDelta(text=text):
                return self._on_text("thinking", text)
            case ToolCall():
                return self._on_tool_call(delta)
            case Finished():
                return self._on_finished(delta)

    def fail(self, error_type: str, message: str, request_id: str) -> list[Event]:
        """The `error` event, which is the last one.

        The open block is not stopped: a client takes a stopped block for complete, keeps it and does not ask again.
        """
        if self._done:
            return []
        self._done = True
        error = {"type": error_type, "message": clean_text(message)}
        return [{"type": "error", "error": error, "request_id": request_id}]

    def ping(self) -> Event:
        """An event that any client skips, allowed anywhere."""
        return {"type": "ping"}

    def heartbeat(self) -> Event:
        """An event that counts as progress for a client that drops streams with nothing but pings.

        It opens no block, and its usage is what is known so far. Before `message_start` only a ping is allowed.
        """
        return self._message_delta(None, None) if self._started and not self._done else self.ping()

    # --- one method per kind of delta ---------------------------------------------------------------------------

    def _on_started(self, prompt_tokens: int, cached_tokens: int) -> list[Event]:
        # After an early commit the engine's own numbers replace those that `message_start` went out with.
        self._note_prompt(prompt_tokens, cached_tokens)
        return self.start(self._input_tokens, self._cached_tokens)

    def _on_text(self, kind: Kind, text: str) -> list[Event]:
        if not text:
            return []
        # Batching makes one delta of several tokens, so this is a lower bound until `Finished` says the number.
        self._output_tokens += 1
        events = self.start(0, 0)
        if kind != self._held_kind:
            events += self._close()
            self._held_kind = kind
        text = self._complete(self._held + text)
        if self._open is None and (not text or text.isspace()):
            self._held = text + self._held
            return events
        if self._open is None:
            events.append(self._block_start(_EMPTY[kind]))
            self._open = kind
        if text:
            events.append(self._text_delta(kind, text))
        return events

    def _on_tool_call(self, call: ToolCall) -> list[Event]:
        self._tool_sent = True
        self._output_tokens += 1
        events = [*self.start(0, 0), *self._close()]
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        arguments = clean_json(call.arguments.encode("utf-8", "surrogatepass")).decode()
        events.append(self._block_start(block))
        events.append(self._block_delta({"type": "input_json_delta", "partial_json": arguments}))
        events.append(self._block_stop())
        return events

    def _on_finished(self, last: Finished) -> list[Event]:
        events = [*self._on_started(last.prompt_tokens, last.cached_tokens), *self._close()]
        self._output_tokens = last.output_tokens
        reason = self._stop_reason(last.stop_reason)
        events.append(self._message_delta(reason, last.stop_sequence if reason == StopReason.STOP_SEQUENCE else None))
        events.append({"type": "message_stop"})
        self._done = True
        return events

    # --- blocks -------------------------------------------------------------------------------------------------

    def _complete(self, text: str) -> str:
        """`text` without a half code point at its end, which is held until its other half comes."""
        self._held = text[-1] if HIGH_SURROGATES[0] <= text[-1] <= HIGH_SURROGATES[1] else ""
        return clean_text(text[:-1] if self._held else text)

    def _close(self) -> list[Event]:
        """Stop the open text or thinking block. Blanks that never came to a block are dropped: clients refuse it."""
        held, self._held = clean_text(self._held), ""
        if self._open is None:
            return []
        events = [self._text_delta(self._open, held)] if held else []
        if self._open == "thinking":
            events.append(self._block_delta({"type": "signature_delta", "signature": SIGNATURE}))
        self._open = None
        return [*events, self._block_stop()]

    def _block_start(self, block: Event) -> Event:
        self._blocks += 1
        return {"type": "content_block_start", "index": self._blocks - 1, "content_block": dict(block)}

    def _text_delta(self, kind: Kind, text: str) -> Event:
        return self._block_delta({"type": f"{kind}_delta", kind: text})

    def _block_delta(self, delta: Event) -> Event:
        return {"type": "content_block_delta", "index": self._blocks - 1, "delta": delta}

    def _block_stop(self) -> Event:
        return {"type": "content_block_stop", "index": self._blocks - 1}

    # --- the end ------------------------------------------------------------------------------------------------

    def _stop_reason(self, said: StopReason) -> StopReason:
        """`tool_use` exactly when a call was sent, unless the answer was cut off."""
        if self._tool_sent:
            return StopReason.TOOL_USE if said == StopReason.END_TURN else said
        return StopReason.END_TURN if said == StopReason.TOOL_USE else said

    def _message_delta(self, reason: StopReason | None, sequence: str | None) -> Event:
        delta = {"stop_reason": reason.value if reason else None, "stop_sequence": sequence}
        return {"type": "message_delta", "delta": delta, "usage": self._usage()}

    def _note_prompt(self, prompt_tokens: int, cached_tokens: int) -> None:
        self._input_tokens, self._cached_tokens = max(prompt_tokens - cached_tokens, 0), cached_tokens

    def _usage(self) -> dict[str, int]:
        return {
            "input_tokens": self._input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self._cached_tokens,
            "output_tokens": self._output_tokens,
        }


_EMPTY: dict[Kind, Event] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
