"""The types that the API and the workers both speak.

Owns: what a request, a job, a delta, a worker and the cluster look like on the wire through Redis, and the version
of that wire. Imports the standard library and pydantic only.
Never: behaviour. No clock, no store, no HTTP.

Units are in the names: `_ms` and `_s` are times, `_tokens` token counts, `_bytes` sizes. Times called `*_ms` without
"took" in their meaning are the broker's clock (Redis TIME), never a machine's own.
"""

import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

CONTRACT_VERSION = 1
TASK_NAME = "corral.generate"
LEVELS = range(10)


class Frozen(BaseModel):
    """An immutable value; unknown fields are refused, so two versions that differ are noticed at once."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- the request, after the protocol has been taken off -----------------------------------------------------------


class TextBlock(Frozen):
    type: Literal["text"] = "text"
    text: str


class ImageBlock(Frozen):
    """`url` is a data: URL or an http(s) one, as the engine takes it."""

    type: Literal["image"] = "image"
    url: str


class ThinkingBlock(Frozen):
    type: Literal["thinking"] = "thinking"
    thinking: str


class ToolUseBlock(Frozen):
    """`input` keeps the client's key order: replayed history must be the same bytes."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Frozen):
    type: Literal["tool_result"] = "tool_result"
    tool_use_id: str
    content: tuple[TextBlock | ImageBlock, ...]
    is_error: bool = False


Block = Annotated[TextBlock | ImageBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


class Message(Frozen):
    role: Literal["user", "assistant"]
    content: tuple[Block, ...]


class Tool(Frozen):
    name: str
    description: str = ""
    input_schema: dict[str, Any]


class ToolChoice(Frozen):
    mode: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    parallel: bool = True


class Thinking(Frozen):
    """`enabled` None = the client did not say; the template's default holds."""

    enabled: bool | None = None
    budget_tokens: int | None = None


class GenerationRequest(Frozen):
    """What to generate, normalised: two client requests that mean the same are equal here."""

    version: int = CONTRACT_VERSION
    model: str
    system: str = ""
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    max_tokens: int
    stop_sequences: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    thinking: Thinking = Thinking()


# --- who asks -----------------------------------------------------------------------------------------------------


class Kind(StrEnum):
    """What a conversation is within its agent. Order of serving inside one agent: main, subagent, side."""

    MAIN = "main"
    SUBAGENT = "subagent"
    SIDE = "side"


class Identity(Frozen):
    """Who asks. `identified` callers wait longer; `conversation` is what a KV cache belongs to."""

    key_name: str
    agent: str
    session: str | None
    conversation: str
    kind: Kind
    identified: bool


class JobSpec(Frozen):
    """A request that the dispatcher is asked to bring to a worker."""

    id: str
    request_id: str
    identity: Identity
    level: int = Field(ge=0, le=9)
    wait_limit_ms: int
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job that a worker now owns for one attempt. `body` is the packed GenerationRequest."""

    id: str
    attempt: int
    level: int
    agent: str
    conversation: str
    kind: Kind
    queue_ms: int
    may_use_reserve: bool
    body: bytes


# --- what comes back: deltas --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The engine has the prompt: its exact length and what it found in its cache. Commits the answer."""

    worker: str
    slot: int
    attempt: int
    queue_ms: int
    prompt_tokens: int
    cached_tokens: int


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
_TAG_OF = {cls: tag for tag, cls in _TAGS.items()}


def encode_deltas(deltas: Iterable[Delta]) -> bytes:
    """Deltas as one JSON array of [tag, field, field, ...]; fields in the order of the dataclass."""
    return json.dumps([[_TAG_OF[type(d)], *astuple(d)] for d in deltas], separators=(",", ":")).encode()


def decode_deltas(raw: bytes) -> list[Delta]:
    """The inverse of `encode_deltas`. Raises ValueError, KeyError or TypeError on anything else."""
    return [_decode(item) for item in json.loads(raw)]


def _decode(item: list[Any]) -> Delta:
    delta: Delta = _TAGS[item[0]](*item[1:])
    if isinstance(delta, Finished):
        return Finished(StopReason(item[1]), *item[2:])
    return delta


# --- the cluster --------------------------------------------------------------------------------------------------


class WorkerState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    FAILING = "failing"
    DRAINING = "draining"


class SlotInfo(Frozen):
    """One slot as its worker reports it: who holds it, how full it is (tokens), is it answering now."""

    slot: int
    conversation: str | None = None
    agent: str | None = None
    busy: bool = False
    tokens: int = 0


class WorkerInfo(Frozen):
    """What a worker's lease says of itself, renewed each second. A new process is a new `incarnation`.

    `context_tokens` is the window of a slot, `prompt_limit_tokens` what a normal prompt may use of it.
    """

    version: int = CONTRACT_VERSION
    name: str
    incarnation: str
    state: WorkerState
    reason: str = ""
    model: str = ""
    model_hash: str = ""
    context_tokens: int = 0
    prompt_limit_tokens: int = 0
    slots: tuple[SlotInfo, ...] = ()
    vision: bool = False
    gpu: str = ""
    engine: str = ""
    engine_bytes: int = 0
    pid: int = 0
    engine_pid: int = 0
    started_ms: int = 0


class WorkerView(Frozen):
    """A living worker and its load. `queued` is per level, 0 first; `homes` counts conversations seen lately."""

    info: WorkerInfo
    queued: tuple[int, ...] = (0,) * 10
    running: int = 0
    homes: int = 0


class ClusterView(Frozen):
    """A snapshot on which policies decide. `now_ms` is the broker's clock."""

    now_ms: int
    workers: tuple[WorkerView, ...] = ()


# --- counting, outside the queue ----------------------------------------------------------------------------------


class CountReply(Frozen):
    """`tokens` of the rendered prompt, as the engine counts them, or why it could not."""

    tokens: int | None = None
    error: str = ""
