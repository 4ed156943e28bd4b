"""What a job costs in the broker and in the API's memory.

Owns: reading the broker's own counters around a measured load, and sizes of what one queued job keeps there.
Never: makes load.
"""

import re
from collections.abc import Awaitable, Callable

import redis

from infra import keys
from infra.bench.report import Figures

IDLE_S = 3.0
COUNTED = re.compile(r"cmdstat_(.+)")
# Read by the bench itself.
OWN = frozenset({"info", "client|setinfo", "client", "hello"})

Pause = Callable[[float], Awaitable[None]]
Work = Callable[[], Awaitable[float]]


class Broker:
    """The broker's own figures."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url, decode_responses=True)

    def calls(self) -> dict[str, int]:
        """How often each command ran since the broker began, those inside scripts included."""
        stats = self._redis.info("commandstats")
        found = {match[1]: value["calls"] for name, value in stats.items() if (match := COUNTED.fullmatch(name))}
        return {name: calls for name, calls in found.items() if name not in OWN}

    async def during(self, work: Work, pause: Pause) -> tuple[dict[str, float], float]:
        """Commands that `work` caused, the house's idle beat taken off, and what `work` returned.

        `work` returns the seconds it took.
        """
        before = self.calls()
        await pause(IDLE_S)
        idle = _difference(before, self.calls())
        before = self.calls()
        took_s = await work()
        counted = _difference(before, self.calls())
        net = {name: calls - idle.get(name, 0) / IDLE_S * took_s for name, calls in counted.items()}
        return net, took_s

    def queued_job_bytes(self, worker: str) -> Figures:
        """Memory of one queued job of `worker`'s line: its record, its share of the line and of the tickets."""
        ids = [str(name) for name in self._redis.zrange(keys.line(worker), 0, -1)]
        if not ids:
            return {}
        records = [self._size(keys.job(job_id)) for job_id in ids]
        lists = keys.level_lists(worker)
        tickets = sum(int(self._redis.llen(name)) for name in lists)
        figures = {
            "jobs": len(ids),
            "record": round(sum(records) / len(records)),
            "line": round(self._size(keys.line(worker)) / len(ids)),
            "ticket": round(sum(map(self._size, lists)) / max(tickets, 1)),
        }
        return figures | {"total": figures["record"] + figures["line"] + figures["ticket"]}

    def close(self) -> None:
        self._redis.close()

    def _size(self, name: str) -> int:
        return int(self._redis.memory_usage(name, samples=0) or 0)


def _difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: calls - before.get(name, 0) for name, calls in after.items() if calls != before.get(name, 0)}
