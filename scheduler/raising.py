"""Makes a queued job more urgent, when one more client waits for its answer.

Owns: the rise in the store (`lua/raise.lua`) and the ticket at the new level.
Never: decides who waits for which job (`sharing`).
"""

from typing import Any
from uuid import uuid4

import structlog
from redis.asyncio import Redis

from infra import keys
from infra.redis_client import broker_errors
from scheduler import scripts
from scheduler.admitting import ENDED_LIFETIME_MS, URGENT_MS
from scheduler.policy.claiming import MOST_URGENT_LEVEL
from scheduler.queue import Tickets

log = structlog.get_logger(__name__)
MOVES = 4  # a job may move or rise between asking and answering; so many times in a row do not happen


class Raising:
    """Raises jobs. All methods raise BrokerDown when Redis does not answer."""

    def __init__(self, redis: Redis, tickets: Tickets) -> None:
        self._raise = redis.register_script(scripts.text("raise"))
        self._tickets = tickets

    async def lift(self, job_id: str, agent: str, worker: str, old: int, new: int, wait_ms: int) -> bool:
        """Let the job stand at level `new` at least, and wait for `wait_ms` from now at least; True while it is queued.

        `old` is the level at which its record was seen last; 0 is the most urgent.
        """
        token = uuid4().hex
        for _ in range(MOVES):
            state, more = await self._ask(job_id, worker, old, new, wait_ms, token)
            if state == "queued" and more:
                log.info("job_raised", job=job_id, worker=worker, level=new, was=old)
                await self._tickets.publish(job_id, agent, worker, new)
            if state not in ("moved", "level"):
                return state == "queued"
            worker, old = (more, old) if state == "moved" else (worker, more)
        return False

    async def waits(self, job_id: str, worker: str, level: int) -> bool:
        """Whether the job is still queued."""
        return await self.lift(job_id, "", worker, level, level, 0)

    async def _ask(self, job_id: str, worker: str, old: int, new: int, wait_ms: int, token: str) -> tuple[str, Any]:
        names = [keys.job(job_id), keys.line(worker), keys.level_list(worker, old)]
        names += [keys.urgent(worker), keys.holding(worker), keys.control(worker)]
        arguments: list[str | int] = [job_id, worker, old, new, keys.LEVEL_WEIGHT, wait_ms, ENDED_LIFETIME_MS]
        arguments += [MOST_URGENT_LEVEL, URGENT_MS, token]
        with broker_errors():
            answer: Any = await self._raise(names, arguments)
        more = answer[1] if len(answer) > 1 else 0
        return answer[0].decode(), more.decode() if isinstance(more, bytes) else more
