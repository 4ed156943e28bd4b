"""Where jobs are, asked together: the look after a silent job, of hundreds of them each second.

Owns: one round trip at a time for all who ask meanwhile, so that many silent streams take one connection and not all.
Never: concludes anything from a job that is gone (`placed`).
"""

import asyncio
from itertools import islice
from typing import Any

from redis.asyncio import Redis

from infra import keys
from infra.errors import BrokerDown
from infra.redis_client import broker_errors

TOGETHER = 100  # more would hold up the loop while their answers are read

Found = tuple[str, float, bool]


class _Ask:
    """One job that is asked for. It outlives whoever asks first: a look that is cancelled leaves it to the next."""

    __slots__ = ("error", "found", "job_id", "over")

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.found: Found | None = None
        self.error: BrokerDown | None = None
        self.over = False


class Whereabouts:
    """For one event loop."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._asks: dict[_Ask, None] = {}
        self._looking = asyncio.Lock()

    async def find(self, job_id: str) -> Found | None:
        """The worker in whose line the job waits, or that runs it, for how many seconds its record lives if nobody
        renews it, and whether it waits; None when there is no record any more. Raises BrokerDown."""
        ask = _Ask(job_id)
        self._asks[ask] = None
        try:
            async with self._looking:
                if not ask.over:
                    await self._look()
        finally:
            self._asks.pop(ask, None)
        if ask.error is not None:
            raise BrokerDown(ask.error.message, retry_after_s=ask.error.retry_after_s) from ask.error
        return ask.found

    async def _look(self) -> None:
        """The oldest asks, and so the one of whoever looks: the lock is given in the order of asking."""
        asks = list(islice(self._asks, TOGETHER))
        pipeline = self._redis.pipeline(transaction=False)
        for ask in asks:
            pipeline.hmget(keys.job(ask.job_id), "worker", "state")
            pipeline.pttl(keys.job(ask.job_id))
        try:
            with broker_errors():
                answers: list[Any] = await pipeline.execute()
        except BrokerDown as error:
            asks = list(self._asks)  # all who wait: each look of theirs would take the same few seconds to fail
            for ask in asks:
                ask.error = error
        else:
            for ask, (worker, state), left_ms in zip(asks, answers[::2], answers[1::2], strict=True):
                ask.found = (worker.decode(), left_ms / 1000, state == b"queued") if worker else None
        for ask in asks:
            ask.over = True
            self._asks.pop(ask, None)
