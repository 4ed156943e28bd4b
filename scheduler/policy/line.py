"""A worker's line as a claim looks at it.

Owns: the snapshot of jobs, slots and service on which claims decide, the settings they obey, and how service is charged
and fades.
Never: decides (`claiming`), knows a clock or a store; times are given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.contract import Kind


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that a claim obeys, as the setting's name says; times in ms."""

    ageing_ms: float = 20_000.0
    half_life_ms: float = 180_000.0
    urgent_share: float = 0.25
    return_hold_ms: float = 5_000.0


@dataclass(frozen=True, slots=True)
class Service:
    """Service had, in ms of an engine at its measured rates. A half-life after `at_ms` half of `ms` is left."""

    ms: float = 0.0
    at_ms: float = 0.0

    def faded(self, now_ms: float, half_life_ms: float) -> float:
        """What of it counts at `now_ms`."""
        return float(self.ms * 2.0 ** (-max(0.0, now_ms - self.at_ms) / half_life_ms))

    def charged(self, ms: float, now_ms: float, half_life_ms: float) -> "Service":
        """With `ms` more: a claim charges what it expects."""
        return Service(self.faded(now_ms, half_life_ms) + ms, now_ms)

    def settled(self, used_ms: float, bill: "Service", now_ms: float, half_life_ms: float) -> "Service":
        """With what was really used in place of `bill`, the charge at the claim, as far as that has not faded."""
        left_ms = self.faded(now_ms, half_life_ms) - bill.faded(now_ms, half_life_ms)
        return Service(max(0.0, left_ms + used_ms), now_ms)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued job. `arrival` is its number in the cluster, in the order of `arrival_ms`; `expected_ms` its expected
    service here, of which `prefill_ms`
    go by before its first token."""

    id: str
    level: int
    key: str
    agent: str
    kind: Kind
    arrival: int
    arrival_ms: float
    expected_ms: float = 0.0
    agent_weight: float = 1.0
    key_weight: float = 1.0
    conversation: str = ""
    prefill_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Occupied:
    """A slot of the worker that is at work."""

    level: int
    key: str
    agent: str
    conversation: str = ""


@dataclass(frozen=True, slots=True)
class Cached:
    """What a free slot holds: a conversation, last asked at `level`, and the prefill that it would cost to lose it.

    `left_ms`: for how long it is expected back from a tool; 0 when it is not.
    """

    conversation: str
    level: int
    prefill_ms: float
    left_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Returning:
    """An agent whose last answer here ended with a tool call: a slot is kept for it until `until_ms`."""

    level: int
    key: str
    agent: str
    until_ms: float


@dataclass(frozen=True, slots=True)
class Line:
    """What a claim looks at. `keys` and `agents` say what service each has had, by the key's name and by `agent_name`;
    who is not there has had none. `cached` is what the free slots hold.

    `urgent_until_ms`: until when slots are kept for the urgent levels; 0: none are.
    """

    now_ms: float
    slots: int
    waiting: Sequence[Waiting]
    running: Sequence[Occupied] = ()
    returning: Sequence[Returning] = ()
    keys: Mapping[str, Service] = field(default_factory=dict)
    agents: Mapping[str, Service] = field(default_factory=dict)
    urgent_until_ms: float = 0.0
    cached: Sequence[Cached] = ()


def agent_name(key: str, agent: str) -> str:
    """One agent among those of all keys; the name of a key holds no colon."""
    return f"{key}:{agent}"


def pair_name(level: int, key: str, agent: str) -> str:
    """A level and an agent, as `corral:back` names them."""
    return f"{level}:{agent_name(key, agent)}"
