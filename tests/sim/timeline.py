"""Virtual time.

Owns: the present moment and what is to happen later, in order of time; of equal times the earlier promise comes first.
Never: a real clock.
"""

import heapq
from collections.abc import Callable
from typing import Any


class Timeline:
    """Seconds since the beginning of the simulation, and the events to come."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._promised = 0

    def at(self, when_s: float, happen: Callable[[Any], None], what: Any = None) -> None:
        """Call `happen(what)` at `when_s`; a time that is past means now."""
        self._promised += 1
        heapq.heappush(self._events, (max(when_s, self.now_s), self._promised, happen, what))

    def run(self) -> None:
        """Let everything happen; returns when nothing more is to come."""
        events, pop = self._events, heapq.heappop
        while events:
            self.now_s, _, happen, what = pop(events)
            happen(what)
