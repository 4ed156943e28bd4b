"""What the API processes tell each other of their requests, while somebody looks.

Owns: the mark that says so, and the few seconds that a process's word lives.
Never: knows what such a word says (`api.ledger`); writes while nobody looks.
"""

from typing import Any

from redis.asyncio import Redis

from infra import keys
from infra.redis_client import broker_errors

LOOKS_MS = 10_000  # a page asks each second, `corral top` too
TOLD_MS = 5_000  # one that has said nothing for so long is not there


class Ledgers:
    """Those of all API processes, as the one named `api` meets them. All methods raise BrokerDown."""

    def __init__(self, redis: Redis, api: str) -> None:
        self._redis = redis
        self._api = api

    async def look(self) -> list[bytes]:
        """What the other processes have told last; they go on telling for LOOKS_MS."""
        with broker_errors():
            await self._redis.set(keys.WATCHED, 1, px=LOOKS_MS)
            names: Any = await self._redis.smembers(keys.APIS)
            others = sorted(name.decode() for name in names if name.decode() != self._api)
            told: Any = await self._redis.mget([keys.ledger(api) for api in others]) if others else []
        return [one for one in told if one is not None]

    async def watched(self) -> tuple[bool, int]:
        """Whether somebody looks, and how many processes there are."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.exists(keys.WATCHED)
        pipeline.scard(keys.APIS)
        with broker_errors():
            watched, processes = await pipeline.execute()
        return bool(watched), int(processes)

    async def tell(self, word: bytes) -> None:
        """Let the others know it."""
        with broker_errors():
            await self._redis.set(keys.ledger(self._api), word, px=TOLD_MS)
