"""Reads who is alive and how loaded.

Owns: the snapshot that policies decide on, and keeping it fresh.
Never: decides; never writes (a worker announces itself through `claims`).
"""

import asyncio
import contextlib
from collections.abc import Sequence
from time import monotonic
from typing import Any

import structlog
from pydantic import ValidationError
from redis.asyncio import Redis

from infra import keys
from infra.errors import BrokerDown
from infra.redis_client import being_cancelled, broker_errors
from scheduler.admitting import HOMES_COUNT_MS
from scheduler.contract import LEVELS, ClusterView, LostWorker, WorkerInfo, WorkerView

log = structlog.get_logger(__name__)
REFRESH_S = 0.5
APART_S = 0.1  # between two looks for those who would be refused
MISSED_S = 2.0  # a connection that broke between two reads is no broker that is away


class Membership:
    """The cluster as seen lately. `view` never waits; `read` asks the broker."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.view = ClusterView(now_ms=0)
        self.fresh = False
        self._missed = False
        self._read_s = -MISSED_S
        self._looked = asyncio.Event()
        self._looking = asyncio.Lock()

    async def first_look(self, limit_s: float) -> None:
        """Wait until `run` has looked once, well or in vain, for `limit_s` at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._looked.wait(), limit_s)

    async def run(self) -> None:
        """Keep `view` fresh until cancelled; `fresh` says whether the broker has answered within MISSED_S."""
        while not being_cancelled():
            try:
                await self._look()
            except BrokerDown as error:
                if not self._missed:
                    log.warning("broker_missed", reason=error.message)
                self._missed = True
                self.fresh = monotonic() - self._read_s < MISSED_S
            self._looked.set()
            await asyncio.sleep(REFRESH_S)

    async def look_again(self) -> None:
        """Make `view` fresh for a request that would be refused by it; the looks of many are one. Raises BrokerDown."""
        async with self._looking:
            if monotonic() - self._read_s >= APART_S:
                await self._look()

    async def _look(self) -> None:
        self.view = await self.read()
        self.fresh, self._missed, self._read_s = True, False, monotonic()

    async def read(self) -> ClusterView:
        """A new snapshot. Raises BrokerDown."""
        with broker_errors():
            names, now_ms = await self.known()
            leases: Any = await self._redis.mget([keys.lease(name) for name in names]) if names else []
            loads = await self._loads(names, now_ms)
        workers, lost = [], []
        for name, lease, (queued, running, homes) in zip(names, leases, loads, strict=True):
            if info := parse_lease(lease):
                workers.append(WorkerView(info=info, queued=queued, running=running, homes=homes))
            elif lease is None and (running or any(queued)):
                lost.append(LostWorker(name=name, queued=queued, running=running))
        return ClusterView(now_ms=now_ms, workers=tuple(workers), lost=tuple(lost))

    async def known(self) -> tuple[list[str], int]:
        """Names of all workers that `recovery` has not forgotten, and the broker's clock in ms."""
        with broker_errors():
            seconds, micros = await self._redis.time()
            now_ms = seconds * 1000 + micros // 1000
            names: Any = await self._redis.zrange(keys.WORKERS, 0, -1)
        return sorted(name.decode() for name in names), now_ms

    async def _loads(self, names: Sequence[str], now_ms: int) -> list[tuple[tuple[int, ...], int, int]]:
        pipeline = self._redis.pipeline(transaction=False)
        for name in names:
            for level in LEVELS:
                low = level * keys.LEVEL_WEIGHT
                pipeline.zcount(keys.line(name), low, low + keys.LEVEL_WEIGHT - 1)
            pipeline.hlen(keys.running(name))
            pipeline.zcount(keys.homes(name), now_ms - HOMES_COUNT_MS, "+inf")
        flat: list[Any] = await pipeline.execute() if names else []
        rows = [flat[i : i + 12] for i in range(0, len(flat), 12)]
        return [(tuple(row[:10]), row[10], row[11]) for row in rows]


def parse_lease(lease: bytes | None) -> WorkerInfo | None:
    """What a lease says; None when there is none or another version of Corral wrote it."""
    if lease is None:
        return None
    try:
        return WorkerInfo.model_validate_json(lease)
    except ValidationError:
        log.warning("lease_not_understood", lease=lease[:80])
        return None
