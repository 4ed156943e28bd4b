"""Which engine a worker here would run, and what it can use of the GPU.

Owns: the devices it lists, the remedy when a card lies idle.
Never: starts an engine for work; that is the worker's.
"""

import re
from dataclasses import dataclass

from infra import engine_search, machine
from infra.config import Settings
from infra.engine_search import EMBEDDED, GPU_BUILDS


@dataclass(frozen=True)
class Engine:
    """`path` of the binary, or `embedded`."""

    path: str

    @property
    def embedded(self) -> bool:
        return self.path == EMBEDDED

    def devices(self) -> tuple[str, ...]:
        """What it can compute on besides the CPU, as `CUDA0: NVIDIA H200 (143771 MiB, ...)`. Takes a second or two."""
        if self.embedded:
            return ()
        _, _, listed = machine.output_of(self.path, "--list-devices").partition("Available devices:")
        return tuple(line.strip() for line in listed.splitlines() if re.match(r"\s+\w+\d*: ", line))


def find(settings: Settings) -> Engine:
    """The engine of these settings. Raises StartError when there is none."""
    return Engine(engine_search.find(settings))


def missing_cards(settings: Settings) -> str:
    """A sentence when `gpu` names cards that this machine does not show; else empty."""
    wanted = [] if settings.gpu in ("", "none") else settings.gpu.split(",")
    there = machine.cards()
    missing = [card for card in wanted if card not in there]
    if not missing:
        return ""
    shown = f"only GPU {', '.join(there)}" if there else "no GPU"
    return f"gpu {settings.gpu}: this machine shows {shown}; what is not there is not used."


def idle_card(settings: Settings, engine: Engine) -> str:
    """A sentence when a GPU is there that this engine cannot use, with the remedy; else empty."""
    names = () if settings.gpu == "none" else machine.card_names() or machine.cards()
    if not names or engine.devices():
        return ""
    kind = "the embedded engine is CPU only" if engine.embedded else f"{engine.path} is built without GPU support"
    found = f"this machine has a GPU ({', '.join(names)}) but {kind}"
    return f"{found}: models will run many times slower. To use it, {GPU_BUILDS}."
