"""Being asked to stop: once politely, twice for real.

Owns: the handlers of SIGINT, SIGTERM, SIGHUP and SIGCHLD while `corral up` runs, and waiting that they interrupt.
Never: stops a process itself.
"""

import signal
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopAskedError(Exception):
    """Someone wants `corral up` to end. Not an error of ours: it never leaves the command."""


class Signals:
    """A context manager. The first asking signal sets `asked`; each later one sets `forced` and calls `on_force`.

    A child that ends wakes `wait` too, so that nobody has to look at short intervals.
    """

    def __init__(self, on_force: Callable[[], None]) -> None:
        self.asked = False
        self.forced = False
        self._on_force = on_force
        # SimpleQueue.put is safe inside a signal handler; a lock of our own would not be.
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._ask) for number in ASKING}
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._wake)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self, timeout_s: float) -> None:
        """Return after the time, or at once when a signal came. Raises StopAskedError when asked to stop."""
        try:
            if not self.asked:
                self._wakes.get(timeout=timeout_s)
        except Empty:
            pass
        self.check()

    def check(self) -> None:
        """Raises StopAskedError when asked to stop."""
        if self.asked:
            raise StopAskedError

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            self.forced = True
            self._on_force()
        self.asked = True
        self._wakes.put(None)

    def _wake(self, _number: int, _frame: FrameType | None) -> None:
        self._wakes.put(None)
