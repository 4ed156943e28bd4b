"""Looks at the memory of the engine, and has it restarted before the machine runs out.

Owns: the thread that takes the samples of one life of the engine, and the words of what they say.
Never: decides what they mean (`scheduler.policy.growing`), restarts anything (`renewal`).
"""

import threading
from collections.abc import Callable
from time import monotonic

import structlog

from infra import machine
from infra.config import AUTO, Settings
from scheduler.policy import growing
from scheduler.policy.growing import Growth, Limits, Sample
from workers.llama.memory import card_bytes, private_bytes
from workers.llama.process import EngineState
from workers.serving import Serving

log = structlog.get_logger(__name__)
TICK_S = 2.0
CARD_EVERY_S = 60.0  # the vendor's tool is a process of its own
GIB = 2**30
NO_CEILING = float("inf")


class Samples:
    """What one life of the engine held of one memory."""

    def __init__(self) -> None:
        self.taken: list[Sample] = []
        self._least_bytes = NO_CEILING

    def add(self, at_s: float, held_bytes: int) -> None:
        """0 is no sample: nothing could be read."""
        if held_bytes:
            self.taken = growing.kept([*self.taken, Sample(at_s, held_bytes)])
            self._least_bytes = min(self._least_bytes, held_bytes)

    def judge(self, limits: Limits) -> Growth:
        return growing.judge(self.taken, self._least_bytes, limits)

    def told(self, growth: Growth, where: str) -> str:
        """What they say, for people."""
        held = self.taken[-1].held_bytes
        if growth is Growth.CEILING:
            grown = f"its memory grew from {_gib(self._least_bytes)} to {_gib(held)} since it was started"
            return f"{grown}, and may not grow further (engine_memory_ceiling_bytes)"
        hour = held - self.taken[0].held_bytes
        return f"its memory{where} grew by {_gib(hour)} in an hour, to {_gib(held)} (engine_growth_bytes_per_h)"


class MemoryWatch:
    """Of one worker. `look` is called again and again by one thread."""

    def __init__(
        self,
        serving: Serving,
        settings: Settings,
        restart: Callable[[str], bool],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`restart` takes the reason, and says whether the engine will be restarted."""
        self._serving = serving
        self._ceiling_bytes = settings.engine_memory_ceiling_bytes
        self._growth_bytes = settings.engine_growth_bytes_per_h
        self._cards = settings.gpu != "none"
        self._restart = restart
        self._clock = clock
        self._next_s = self._card_s = -NO_CEILING
        self._begin("")

    def _begin(self, run: str) -> None:
        self._run, self._main, self._card = run, Samples(), Samples()

    def look(self) -> None:
        """Take what samples are due, and see what they say."""
        engine, caches, now_s = self._serving.engine, self._serving.caches, self._clock()
        if caches is None or engine.state is not EngineState.READY:
            return
        if caches.run != self._run:
            self._begin(caches.run)
        self._main.add(now_s, private_bytes(engine.pid))
        if self._cards and now_s >= self._card_s:
            self._card.add(now_s, card_bytes(engine.pid))
            self._card_s = now_s + CARD_EVERY_S
        reason = self._reason()
        if reason and now_s >= self._next_s and self._restart(f"{reason}; it is restarted"):
            self._next_s = now_s + growing.APART_S

    def _reason(self) -> str:
        growth = self._main.judge(Limits(self._ceiling(), self._growth_bytes))
        if growth is not Growth.NONE:
            return self._main.told(growth, "")
        growth = self._card.judge(Limits(NO_CEILING, self._growth_bytes))
        return self._card.told(growth, " on the card") if growth is not Growth.NONE else ""

    def _ceiling(self) -> float:
        if self._ceiling_bytes != AUTO:
            return self._ceiling_bytes
        if not self._main.taken:
            return NO_CEILING
        total, available = machine.memory_bytes()
        return growing.free_ceiling(self._main.taken[-1].held_bytes, available, total)


def watch_memory(watch: MemoryWatch, stopping: threading.Event) -> None:
    """Look now, before the engine is given work, and then every few seconds until `stopping`. Nothing ends it before:
    nobody starts it again."""
    while not stopping.is_set():
        try:
            watch.look()
        except Exception:
            log.exception("engine_memory_not_looked_at")
        stopping.wait(TICK_S)


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f} GiB"
