"""The engine of a worker restarted on purpose: because its memory grows, or because it no longer works as it should.

Owns: the steps between the word and the work after it: no new work, conversations are promised to the others, answers
end or are cut and go on, what the slots hold is saved, the engine is ended, and the next one is waited for.
Never: says when (`memory`, `serving`), restores a cache (the next turn of each conversation does).

An engine that is condemned has no more answers to end, and a short time to save; one that hangs comes never here.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import structlog

from scheduler.contract import WorkerState
from workers.caches import Caches
from workers.keeper import leave, save_all
from workers.llama.process import EngineState
from workers.running import Running
from workers.serving import Serving

log = structlog.get_logger(__name__)
TICK_S = 0.25
CUT_LIMIT_S = 10.0  # after it an answer that could not be cut is lost with the engine
SAVE_LIMIT_S = 60.0
CONDEMNED_SAVE_LIMIT_S = 5.0
OVER = (EngineState.FAILING, EngineState.SICK, EngineState.STOPPED)  # why, its supervisor says; it starts it again


@dataclass(frozen=True, slots=True)
class Wanted:
    """A restart of one run of the engine: `planned`, or because it was condemned."""

    reason: str
    run: str
    planned: bool


class Renewal:
    """Of one worker. Any thread asks; one thread, the drain's, goes through it."""

    def __init__(self, serving: Serving, running: Running, drain_s: float) -> None:
        """At a planned restart answers may go on for `drain_s`."""
        self._serving = serving
        self._running = running
        self._drain_s = drain_s
        self._wanted: Wanted | None = None

    def plan(self, reason: str) -> bool:
        """Restart the engine when its answers have ended; False while the worker takes no work anyway."""
        return self._ask(reason, planned=True)

    def condemn(self, reason: str) -> None:
        """Restart an engine that still answers, but not as it should; at once while the worker takes no work."""
        if not self._ask(reason, planned=False):
            self._serving.engine.condemn(reason)

    @property
    def due(self) -> bool:
        return self._wanted is not None

    def _ask(self, reason: str, *, planned: bool) -> bool:
        caches = self._serving.caches
        if caches is None or self._serving.aside is not None or self._serving.draining.is_set():
            return False
        self._wanted = Wanted(reason, caches.run, planned)
        self._serving.set_aside(WorkerState.RESTARTING, reason)  # closes the gate at once
        return True

    def go_through(self, told_to_end: Callable[[], bool]) -> None:
        """From the closed gate to an engine that is ready again, or fails. A worker that is told to end meanwhile does
        the rest of it at its end."""
        wanted, self._wanted = self._wanted, None
        caches = self._serving.caches
        if wanted is not None and caches is not None and caches.run == wanted.run:
            try:
                self._restart(wanted, caches, told_to_end)
            except Exception:  # the thread has drains to see to as well
                log.exception("engine_restart_failed")
                self._serving.engine.condemn(wanted.reason, planned=wanted.planned)
        if not told_to_end():
            self._serving.set_aside(None)

    def _restart(self, wanted: Wanted, caches: Caches, told_to_end: Callable[[], bool]) -> None:
        running = len(self._running.jobs())
        log.warning("engine_restart_began", worker=self._serving.name, reason=wanted.reason, running=running)
        self._serving.set_aside(WorkerState.RESTARTING, wanted.reason)  # the end of a drain may have opened the gate
        leave(caches)  # first: who is given a conversation must know that its cache is about to come
        self._empty(self._drain_s if wanted.planned else 0.0, told_to_end)
        if told_to_end():
            return
        _save(caches, SAVE_LIMIT_S if wanted.planned else CONDEMNED_SAVE_LIMIT_S)
        self._serving.engine.condemn(wanted.reason, planned=wanted.planned)
        while not told_to_end() and not self._is_over(wanted.run):
            self._serving.draining.wait(TICK_S)

    def _empty(self, limit_s: float, told_to_end: Callable[[], bool]) -> None:
        ends_s = monotonic() + limit_s
        while not told_to_end() and monotonic() < ends_s + CUT_LIMIT_S:
            if monotonic() >= ends_s:
                self._running.cut_all()
            if self._running.wait_idle(TICK_S):
                return

    def _is_over(self, run: str) -> bool:
        caches = self._serving.caches
        return self._serving.engine.state in OVER or (caches is not None and caches.run != run)


def _save(caches: Caches, limit_s: float) -> None:
    """Save what the slots hold, in a thread of its own: an engine that does not answer holds up nobody. What is being
    saved when the limit is over is lost with the engine."""
    saving = threading.Thread(target=_saved, args=(caches, limit_s), name="save", daemon=True)
    saving.start()
    saving.join(limit_s)


def _saved(caches: Caches, limit_s: float) -> None:
    try:
        save_all(caches, limit_s)
        caches.settle_promises()
    except Exception as error:  # it costs prefills; an engine that is never restarted would cost more
        log.warning("not_saved", error=type(error).__name__)
