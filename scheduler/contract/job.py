"""Who asks, and the job that a request becomes."""

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from scheduler.contract.base import Frozen


class Kind(StrEnum):
    """What a conversation is within its agent. Order of serving inside one agent: main, subagent, side.

    A warm-up is nobody's: it has no home and owns no slot, it only leaves a base behind for whoever comes.
    """

    MAIN = "main"
    SUBAGENT = "subagent"
    SIDE = "side"
    WARM = "warm"


class Identity(Frozen):
    """Who asks. `identified` callers wait longer; `conversation` is what a KV cache belongs to.

    `line` is the same for all that one main line, one subagent or one agent's side calls ask, whatever system text,
    tools and model they bring: a conversation that ends because these changed is seen in it.
    """

    key_name: str
    agent: str
    session: str | None
    conversation: str
    line: str = ""
    kind: Kind
    identified: bool


@dataclass(frozen=True, slots=True)
class PackedRequest:
    """A GenerationRequest as it goes to a worker (`scheduler.packing`): made once, off the event loop when it is large.

    `json_bytes` is its size before it was compressed, as far as it tells how long the prompt is: an image counts as
    some text. `digest` is the SHA-256 of `body`. `greedy`: it asks for the likeliest answer (temperature 0): whoever
    asks the same gets the same.
    """

    model: str
    body: bytes
    json_bytes: int
    digest: bytes
    greedy: bool


class JobSpec(Frozen):
    """A request that the dispatcher is asked to bring to a worker.

    `prompt_tokens` is an estimate. A weight says how large a share is fair: of the agent among those of its key, and of
    the key among all. `traceparent` names its request in its trace (W3C Trace Context); "": nobody traces it.
    """

    id: str
    identity: Identity
    level: int = Field(ge=0, le=9)
    wait_limit_ms: int
    prompt_tokens: int = Field(0, ge=0)
    agent_weight: float = Field(1.0, gt=0)
    key_weight: float = Field(1.0, gt=0)
    request: PackedRequest
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job that a worker now owns for one attempt. `body` is the packed GenerationRequest.

    `expected_ms` of service were charged to its agent and key at `claimed_ms`, broker's clock. For this attempt it
    waited `waited_ms`; `queue_ms` counts from the first one's wait. `traceparent` names its request, `span_id` this
    attempt in the same trace.
    """

    id: str
    attempt: int
    level: int
    agent: str
    conversation: str
    kind: Kind
    queue_ms: int
    may_use_reserve: bool
    body: bytes
    key: str = ""
    expected_ms: float = 0.0
    claimed_ms: int = 0
    waited_ms: int = 0
    traceparent: str = ""
    span_id: str = ""

    @property
    def engine_trace(self) -> str:
        """What the engine is told: it works for this attempt."""
        return f"{self.traceparent[:36]}{self.span_id}{self.traceparent[52:]}" if self.traceparent else ""
