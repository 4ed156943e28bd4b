"""The mark that a worker is to take no work: set and removed by an API process, read by the worker with each beat.

Owns: the mark's life.
Never: empties a worker (`recovery` moves what waits there, the worker itself sees to what runs), says who may ask.

The mark lies in the broker, so it outlives a worker that crashes: it comes back drained. Who removes it: `corral
undrain`, and the worker when it is told to end, for then its drain has come to its end.
"""

from typing import Any

from redis.asyncio import Redis

from infra import keys
from infra.redis_client import broker_errors

DRAIN_MARK_MS = 86_400_000  # a worker that never comes back leaves nothing for ever; each beat renews it


class Draining:
    """The marks of all workers. Both methods raise BrokerDown when Redis does not answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def begin(self, worker: str, limit_s: float) -> None:
        """`worker` is to take no work; what it answers may go on for `limit_s`. Said again, the new limit counts."""
        with broker_errors():
            clock: Any = await self._redis.time()
            until_ms = clock[0] * 1000 + clock[1] // 1000 + int(limit_s * 1000)
            await self._redis.set(keys.drain(worker), until_ms, px=DRAIN_MARK_MS)

    async def end(self, worker: str) -> bool:
        """`worker` is to work again; False when it was not to be drained."""
        with broker_errors():
            return bool(await self._redis.delete(keys.drain(worker)))
