"""How far the warm-ups of each engine are, so that of all API processes one at a time sees to it.

Owns: the locks of engines and bases, and which bases of an engine are done or have failed how often.
Never: submits a job, decides what is tried again.
"""

import uuid
from typing import Any

from redis.asyncio import Redis

from infra import keys
from infra.redis_client import broker_errors
from scheduler import scripts

LOCK_MS = 10_000  # renewed each second while a warm-up runs
KEPT_MS = 86_400_000
DONE = b"done"


class Warmups:
    """The books of warm-ups. All methods raise BrokerDown when Redis does not answer.

    `engine` names one run of one worker's engine; what an earlier run was warmed up with is of no use to the next.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._owner = uuid.uuid4().hex
        self._unlock = redis.register_script(scripts.text("unlock"))

    async def take(self, what: str) -> bool:
        """Whether the engine, or the base, is this caller's from now on, for LOCK_MS."""
        with broker_errors():
            return bool(await self._redis.set(_lock(what), self._owner, nx=True, px=LOCK_MS))

    async def renew(self, *whats: str) -> None:
        """Hold them for LOCK_MS more. Should one have run out and be another's, a base is asked for twice, no worse."""
        with broker_errors():
            for what in whats:
                await self._redis.pexpire(_lock(what), LOCK_MS)

    async def give_back(self, what: str) -> None:
        """Let another one go on."""
        with broker_errors():
            await self._unlock([_lock(what)], [self._owner])

    async def failures(self, engine: str) -> dict[str, int | None]:
        """base -> how often its warm-up failed, None when it is done; a base that was not tried is not there."""
        with broker_errors():
            found: Any = await self._redis.hgetall(keys.warm(engine))
        return {base.decode(): None if said == DONE else int(said) for base, said in found.items()}

    async def done(self, engine: str, base: str) -> None:
        """The engine, or its store, has this base."""
        await self._write(engine, base, DONE)

    async def failed(self, engine: str, base: str, times: int) -> None:
        """Its warm-up has failed `times` times by now."""
        await self._write(engine, base, str(times).encode())

    async def _write(self, engine: str, base: str, said: bytes) -> None:
        with broker_errors():
            await self._redis.hset(keys.warm(engine), base, said)
            await self._redis.pexpire(keys.warm(engine), KEPT_MS)


def _lock(what: str) -> str:
    return keys.lock(f"warm:{what}")
