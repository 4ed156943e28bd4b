"""Looks after an engine that owes tokens and gives none.

Owns: the thread that takes two looks at a silent engine, and ends its life when it hangs.
Never: decides what a look means (`scheduler.policy.hanging`); starts the engine again (`llama.process`) or the answers
it held (`attempts`).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol
from urllib.parse import urlsplit

import psutil
import structlog

from scheduler.policy.hanging import Look, Loop, hangs, suspicious
from workers.llama.probe import Probe
from workers.llama.process import EngineProcess
from workers.serving import Serving

log = structlog.get_logger(__name__)
TICK_S = 1.0
APART_S = 3.0  # between two looks: enough for an engine that computes to use processor time

Working = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look saw: the slots that work, None when the loop did not answer, and processor seconds used so far."""

    at_s: float
    pid: int
    working: Working | None
    processor_s: float


class Watchdog:
    """Of one worker. `look` is called again and again by one thread."""

    def __init__(
        self, serving: Serving, hang_s: float, longest_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        """`hang_s` of silence are worth a look; an engine that computes is believed for `longest_s`."""
        self.serving = serving
        self._hang_s = hang_s
        self._longest_s = longest_s
        self._clock = clock
        self._first: Sight | None = None

    def look(self) -> None:
        """One look, when one is due."""
        silent_s = self.serving.pulse.silent_s()
        if not suspicious(silent_s, self.serving.rates.prefill_tokens_per_s, self._hang_s):
            self._first = None
            self.serving.silence = ""
        elif self._first is None:
            self._first = self._sight()
            self.serving.silence = "its engine owes tokens and says nothing; it is looked at"
            log.warning("engine_silent", worker=self.serving.name, silent_s=round(silent_s, 1))
        elif self._clock() - self._first.at_s >= APART_S:
            self._judge(self._first, self._sight(), silent_s)

    def _judge(self, first: Sight, now: Sight, silent_s: float) -> None:
        self._first = now
        if now.pid != first.pid or not now.pid or not self.serving.pulse.silent_s():
            return
        loop = _loop(first.working, now.working)
        if loop is Loop.MOVES:
            self.serving.pulse.seen_alive()
        share = (now.processor_s - first.processor_s) / max(now.at_s - first.at_s, APART_S)
        if hangs(Look(silent_s, loop, share), self._longest_s):
            self.serving.engine.condemn(f"it made no progress for {silent_s:.0f} s and was restarted")

    def _sight(self) -> Sight:
        engine = self.serving.engine
        return Sight(self._clock(), engine.pid, working_slots(engine), processor_s(engine.pid))


class Looking(Protocol):
    """What looks at a part each second."""

    def look(self) -> None: ...


def watch_forever(watchdog: Looking, stopping: threading.Event) -> None:
    """Look each second until `stopping`. Nothing ends it before: nobody starts it again."""
    while not stopping.wait(TICK_S):
        try:
            watchdog.look()
        except Exception:
            log.exception("not_looked_at", watchdog=type(watchdog).__name__)


def working_slots(engine: EngineProcess) -> Working | None:
    """What the engine's loop says of the slots that work now; None when it does not answer."""
    with Probe(urlsplit(engine.base_url).port or 0, engine.api_key) as probe:
        return probe.working_slots()


def processor_s(pid: int) -> float:
    """Processor time the process has used; waiting for a disk counts as well, by the kernel's own book. 0 without one.

    A model that is read from a slow disk while it computes must not look idle.
    """
    try:
        times = psutil.Process(pid).cpu_times() if pid else None
    except psutil.Error:
        return 0.0
    return times.user + times.system + getattr(times, "iowait", 0.0) if times else 0.0


def _loop(before: Working | None, now: Working | None) -> Loop:
    if now is None:
        return Loop.SILENT
    return Loop.STANDS if now and now == before else Loop.MOVES
