"""What comes back of a job, and how it travels."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from pydantic_core import from_json, to_json


class Source(StrEnum):
    """What a slot held when the engine looked for the prompt's beginning in it."""

    OWN = "own"  # the conversation's last turn
    SAVED = "saved"  # its saved cache, restored from the store
    BASE = "base"  # the saved base, restored from the store
    SHARED = "shared"  # another conversation with the same base
    NOTHING = "nothing"  # nothing of use


class Gone(StrEnum):
    """Why a conversation's own cache was not in a slot of this engine."""

    HERE = ""  # it was
    NEW = "new"  # this engine never had it, as far as it remembers
    EVICTED = "evicted"  # another conversation took its slot
    IDLE = "idle"  # its slot was freed after the idle limit
    COPY = "copy"  # its slot is busy with another request of the same conversation


@dataclass(frozen=True, slots=True)
class Started:
    """The engine has the prompt: its exact length and what it found in its cache. Commits the answer.

    `engine_run` changes with each start of the engine: caches of another run are lost.
    """

    worker: str
    slot: int
    attempt: int
    queue_ms: int
    prompt_tokens: int
    cached_tokens: int
    source: Source = Source.NOTHING
    gone: Gone = Gone.NEW
    restored_tokens: int = 0
    restore_ms: int = 0
    engine_run: str = ""


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete, valid call. `arguments` is one JSON object as text, in the model's own key order."""

    id: str
    name: str
    arguments: str


class StopReason(StrEnum):
    END_TURN = "end_turn"
    MAX_TOKENS = "max_tokens"
    STOP_SEQUENCE = "stop_sequence"
    TOOL_USE = "tool_use"
    WINDOW = "model_context_window_exceeded"


@dataclass(frozen=True, slots=True)
class Finished:
    """The last delta of an answer that ended well."""

    stop_reason: StopReason
    stop_sequence: str | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    prefill_ms: int
    decode_ms: int
    model_hash: str
    engine_bytes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The last delta of an answer that did not: a code of `infra.errors` and words for the client."""

    code: str
    message: str
    retry_after_s: int | None = None
    prompt_tokens: int | None = None


Delta = Started | TextDelta | ThinkingDelta | ToolCall | Finished | Failed

_TAGS: dict[str, type[Delta]] = {
    "start": Started,
    "text": TextDelta,
    "think": ThinkingDelta,
    "tool": ToolCall,
    "done": Finished,
    "fail": Failed,
}
# Looked up once: `dataclasses.astuple` takes as long for one delta as all the rest of writing it.
_WRITTEN = {cls: (tag, tuple(field.name for field in fields(cls))) for tag, cls in _TAGS.items()}


def encode_deltas(deltas: Iterable[Delta]) -> bytes:
    """Deltas as one JSON array of [tag, field, field, ...]; fields in the order of the dataclass."""
    return to_json([_written(delta) for delta in deltas])


def decode_deltas(raw: bytes) -> list[Delta]:
    """The inverse of `encode_deltas`. Raises ValueError, KeyError or TypeError on anything else."""
    return [_decode(item) for item in from_json(raw)]


def _written(delta: Delta) -> list[Any]:
    tag, names = _WRITTEN[type(delta)]
    return [tag, *(getattr(delta, name) for name in names)]


def _decode(item: list[Any]) -> Delta:
    delta: Delta = _TAGS[item[0]](*item[1:])
    if isinstance(delta, Finished):
        return replace(delta, stop_reason=StopReason(delta.stop_reason))
    if isinstance(delta, Started):
        return replace(delta, source=Source(delta.source), gone=Gone(delta.gone))
    return delta
