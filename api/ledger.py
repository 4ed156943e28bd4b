"""What this process answers now, and what it answered lately.

Owns: the records of running requests and the fields of the last ones that ended; and who listens to their shapes.
Never: a word of a prompt or an answer; the cluster (`scheduler.membership`); what other processes answer.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from api.shapes import Shapes

MOST_RECENT = 60


class Running(Protocol):
    """A request that has not ended."""

    def live(self) -> dict[str, Any]: ...


class Ledger:
    """One per API process."""

    def __init__(self) -> None:
        self._running: dict[str, Running] = {}
        self._recent: deque[Mapping[str, Any]] = deque(maxlen=MOST_RECENT)
        self._number = 0
        self.shapes = Shapes()

    def began(self, request_id: str, record: Running) -> None:
        self._running[request_id] = record

    def ended(self, request_id: str, fields: Mapping[str, Any]) -> None:
        """`fields` are those of its log line."""
        self._running.pop(request_id, None)
        self._number += 1
        self._recent.appendleft({"number": self._number, **fields})

    def running(self) -> list[dict[str, Any]]:
        """Oldest first."""
        return [record.live() for record in self._running.values()]

    def recent(self) -> list[Mapping[str, Any]]:
        """Newest first; each has a `number` that grows."""
        return list(self._recent)
