"""API processes that died: nobody reads the answers they asked for.

Owns: finding them, and taking their sign of life away, whereupon the next beat of each worker cancels what it runs for
them and no claim takes what waits.
Never: ends a job itself; gives up a process that is only slow or frozen.

A dead process has lost its connections to the broker, a frozen one has not: its clients are still there, and it has as
long as its sign of life lasts (`admitting.API_LIFETIME_MS`). The same goes for one whose machine is cut off.
"""

from typing import Any

import structlog
from redis.asyncio import Redis

from infra import keys
from infra.redis_client import broker_errors
from scheduler import scripts
from scheduler.admitting import API_LIFETIME_MS

log = structlog.get_logger(__name__)
SILENT_MS = 3000  # three signs of life missed; one that lost its connections only has made new ones by then
OLD_MS = API_LIFETIME_MS - SILENT_MS


class LostApis:
    """The look of one API process at the others. Only for one who has been in unbroken contact with the broker for
    longer than SILENT_MS: one that comes back knows nobody's connections yet."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._forget_one = redis.register_script(scripts.text("forget_api"))

    async def give_up(self) -> None:
        """Those that are silent and have no connection. Raises BrokerDown."""
        silent = await self._silent()
        if not silent:
            return
        with broker_errors():
            clients: Any = await self._redis.client_list()
        connected = {client["name"] for client in clients}
        for api in silent:
            if keys.api_client(api) not in connected and await self._forget(api):
                log.info("api_gone", api=api)

    async def _silent(self) -> list[str]:
        with broker_errors():
            names: Any = await self._redis.smembers(keys.APIS)
            apis = [name.decode() for name in names]
            pipeline = self._redis.pipeline(transaction=False)
            for api in apis:
                pipeline.pttl(keys.wake(api))
            left_ms: Any = await pipeline.execute() if apis else []
        return [api for api, left in zip(apis, left_ms, strict=True) if left < OLD_MS]

    async def _forget(self, api: str) -> bool:
        """False when it has come back meanwhile."""
        with broker_errors():
            return bool(await self._forget_one([keys.wake(api), keys.APIS], [api, OLD_MS]))
