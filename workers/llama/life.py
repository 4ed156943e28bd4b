"""The states of an engine's process, and what is known of one life when it is over.

Owns: these two types.
Never: changes a state (`process`).
"""

from dataclasses import dataclass
from enum import StrEnum


class EngineState(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    FAILING = "failing"
    SICK = "sick"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Life:
    """One life of the engine's process, looked at when it is over. `ready_s` is None when it never was ready.

    It was `condemned` when somebody found that it did not work; that an end was `planned` is no failure.
    """

    reason: str
    ready_s: float | None = None
    port_taken: bool = False
    condemned: bool = False
    planned: bool = False
