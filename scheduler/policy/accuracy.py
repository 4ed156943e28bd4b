"""How far predictions of waits were off.

Owns: the last waits and what was said of them, and the figures made of these.
Never: predicts.

Jobs that were started at once, as they were told, are not counted: of these everybody is right.
"""

from collections import deque
from dataclasses import dataclass

MOST_WAITS = 500
AT_ONCE_MS = 100  # a ticket takes so long to a free slot at most


@dataclass(frozen=True, slots=True)
class Error:
    """Over `waits` of them: median and 90th percentile of |predicted - real|, and the predicted waits over the real."""

    waits: int = 0
    median_ms: int = 0
    p90_ms: int = 0
    ratio: float = 0.0


class Accuracy:
    """The last MOST_WAITS waits."""

    def __init__(self) -> None:
        self._waits: deque[tuple[float, float]] = deque(maxlen=MOST_WAITS)

    def learn(self, predicted_ms: float, real_ms: float) -> None:
        """What was said at a job's arrival, and what it was."""
        if predicted_ms > 0 or real_ms > AT_ONCE_MS:
            self._waits.append((predicted_ms, real_ms))

    def error(self) -> Error:
        """The figures of now."""
        if not self._waits:
            return Error()
        off = sorted(abs(predicted - real) for predicted, real in self._waits)
        real_ms = sum(real for _, real in self._waits)
        predicted_ms = sum(predicted for predicted, _ in self._waits)
        return Error(
            waits=len(off),
            median_ms=round(_at(off, 0.5)),
            p90_ms=round(_at(off, 0.9)),
            ratio=round(predicted_ms / max(1.0, real_ms), 2),
        )


def _at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]
