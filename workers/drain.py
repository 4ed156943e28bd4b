"""Taking no work for a while, because somebody said so (`corral drain`), and taking it again.

Owns: what a worker does between the two words, in a thread of its own: conversations are promised to the others,
answers may end, longer ones are cut and go on elsewhere, what the slots hold is saved.
Never: ends the worker (`lifecycle` does the same when it is told to end), hears the words (`heartbeat`), restarts the
engine (`renewal`, in the same thread: one of the two at a time).
"""

import threading
from time import monotonic

import structlog

from scheduler.contract import WorkerState
from workers.keeper import leave, save_all
from workers.renewal import Renewal
from workers.running import Running
from workers.serving import Serving

log = structlog.get_logger(__name__)
TICK_S = 0.25
SAVE_LIMIT_S = 10.0


class Drain:
    """Shared by the heartbeat, which says whether the worker is to be drained, and the thread that sees to it."""

    def __init__(self, serving: Serving, running: Running, renewal: Renewal) -> None:
        self._serving = serving
        self._running = running
        self._renewal = renewal
        self._asked = threading.Event()
        self._ends_s = 0.0

    def told(self, left_ms: int | None) -> None:
        """What each beat brings: how long answers may still go on here; None: the worker is to work."""
        if left_ms is None:
            self._asked.clear()
            return
        self._ends_s = monotonic() + left_ms / 1000
        self._serving.aside = self._serving.aside or WorkerState.DRAINING  # closes the gate even while a model loads
        self._asked.set()

    def run(self, stopping: threading.Event) -> None:
        """See to each drain until `stopping`, or until the worker is told to end, which is a drain of its own."""

        def told_to_end() -> bool:
            return stopping.is_set() or self._serving.draining.is_set()

        while not told_to_end():
            if self._renewal.due:
                self._renewal.go_through(told_to_end)
            elif self._asked.wait(TICK_S):
                self._go_through(stopping)
            elif self._serving.aside is not None and not self._renewal.due:
                log.info("undrained", worker=self._serving.name)
                self._show(None)

    def _go_through(self, stopping: threading.Event) -> None:
        serving, running = self._serving, self._running
        log.info("drain_began", worker=serving.name, running=len(running.jobs()))
        if serving.caches is not None:
            leave(serving.caches)  # first: who is given a conversation must know that its cache is about to come
        self._show(WorkerState.DRAINING)
        while self._asked.is_set() and not serving.draining.is_set() and not stopping.is_set():
            if not running.wait_idle(TICK_S):
                if monotonic() >= self._ends_s:
                    running.cut_all()
            elif serving.aside is WorkerState.DRAINED:
                stopping.wait(TICK_S)
            else:
                self._rest()

    def _rest(self) -> None:
        """Nothing runs any more."""
        if self._serving.caches is not None:
            try:
                save_all(self._serving.caches, SAVE_LIMIT_S)
            except Exception as error:  # it costs prefills; a drain that never ends would cost more
                log.warning("not_saved", error=type(error).__name__)
        log.info("drained", worker=self._serving.name)
        self._show(WorkerState.DRAINED)

    def _show(self, state: WorkerState | None) -> None:
        self._serving.set_aside(state)
