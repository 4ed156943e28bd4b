"""How an API process comes to its end.

Owns: since when no new work is taken, and when the answers that still run are ended.
Never: ends anything itself; whoever waits asks.
"""

from time import monotonic


class Closing:
    """`begin` once, from a signal handler too; what runs then may go on for `drain_s` seconds."""

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self._began_s: float | None = None

    def begin(self) -> None:
        """No new work from now on; later calls change nothing."""
        if self._began_s is None:
            self._began_s = monotonic()

    @property
    def begun(self) -> bool:
        return self._began_s is not None

    @property
    def over(self) -> bool:
        """Whether the answers that still run have to end now."""
        return self._began_s is not None and monotonic() - self._began_s >= self._drain_s
