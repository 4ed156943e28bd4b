"""Who asks, and the job that a request becomes."""

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from scheduler.contract.base import Frozen
from scheduler.contract.request import GenerationRequest


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
