"""The engine's signs of life, as its answers show them.

Owns: since when the engine owes one. It owes as long as it works for somebody; each token or progress pays.
Never: asks the engine, judges its silence (`scheduler.policy.hanging`).
"""

import threading
from collections.abc import Callable
from time import monotonic


class Pulse:
    """Of one life of the engine. Shared by the threads of a worker.

    Whoever leaves without having heard anything leaves the debt behind: an engine that hangs must not look idle
    because its clients have no patience.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._working = 0
        self._owed_since_s: float | None = None

    def begin(self) -> None:
        """The engine was given work."""
        with self._lock:
            self._working += 1
            if self._owed_since_s is None:
                self._owed_since_s = self._clock()

    def beat(self) -> None:
        """It has shown progress with something."""
        with self._lock:
            self._owed_since_s = self._clock() if self._working else None

    def end(self, *, heard: bool) -> None:
        """One that gave it work has left; `heard` when it was shown progress before."""
        with self._lock:
            self._working -= 1
            if not self._working and heard:
                self._owed_since_s = None

    def seen_alive(self) -> None:
        """It answers otherwise: unless somebody still waits, it owes nothing."""
        with self._lock:
            if not self._working:
                self._owed_since_s = None

    def silent_s(self) -> float:
        """Seconds since the last sign of life that it owed; 0 when it owes none."""
        with self._lock:
            return 0.0 if self._owed_since_s is None else self._clock() - self._owed_since_s
