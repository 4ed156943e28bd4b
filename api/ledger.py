"""What this process answers now, and what it answered lately.

Owns: the records of running requests and the fields of the last ones that ended; and who listens to their shapes.
Never: a word of a prompt or an answer; the cluster (`scheduler.membership`); what other processes answer (`others`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from api.shapes import Shapes

MOST_RECENT = 60


class Running(Protocol):
    """A request that has not ended."""

    def live(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Requests:
    """Those that run, the oldest first, and those that ended lately, the newest first: `ago_ms` ago."""

    running: list[dict[str, Any]]
    recent: list[dict[str, Any]]


class Ledger:
    """One per API process."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._running: dict[str, Running] = {}
        self._recent: deque[tuple[float, Mapping[str, Any]]] = deque(maxlen=MOST_RECENT)
        self.shapes = Shapes()

    def began(self, request_id: str, record: Running) -> None:
        self._running[request_id] = record

    def ended(self, request_id: str, fields: Mapping[str, Any]) -> None:
        """`fields` are those of its log line."""
        self._running.pop(request_id, None)
        self._recent.appendleft((self._clock(), fields))

    def requests(self) -> Requests:
        """All of them, as they stand now."""
        now_s = self._clock()
        recent = [{**fields, "ago_ms": round((now_s - ended_s) * 1000)} for ended_s, fields in self._recent]
        return Requests([record.live() for record in self._running.values()], recent)


def together(told: Iterable[tuple[str, Requests]]) -> Requests:
    """The requests of several processes as if they were those of one; each says which one in `api`."""
    running, recent = [], []
    for api, requests in told:
        running += [{**one, "api": api} for one in requests.running]
        recent += [{**one, "api": api} for one in requests.recent]
    running.sort(key=lambda one: -int(one["took_ms"]))
    recent.sort(key=lambda one: int(one["ago_ms"]))
    return Requests(running, recent[:MOST_RECENT])
