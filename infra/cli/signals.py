"""Being asked to stop: once politely, twice for real.

Owns: the handlers of SIGINT, SIGTERM, SIGHUP and SIGCHLD while `corral up` runs, and waiting that they interrupt.
Never: stops a process itself.
"""

import os
import select
import signal
from collections.abc import Callable
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
        self._before: dict[int, Any] = {}
        # The C part of a handler writes to this pipe. A lock or queue would lose the signal that comes in the instant
        # before it starts to wait: its Python part would run only after the wait.
        self._read, self._write = -1, -1
        self._descriptor_before = -1

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._descriptor_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._ask) for number in ASKING}
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _nothing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._descriptor_before)
        os.close(self._read)
        os.close(self._write)

    def wait(self, timeout_s: float) -> None:
        """Return after the time, or at once when a signal came. Raises StopAskedError when asked to stop."""
        self.check()
        readable, _, _ = select.select([self._read], [], [], max(0, timeout_s))
        if readable:
            os.read(self._read, 4096)
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


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler, so that the signal reaches the pipe."""
