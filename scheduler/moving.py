"""Takes the queued jobs of a worker that cannot serve them to others that can.

Owns: the moves of one sweep, each counted into the view on which the next is decided.
Never: decides whose line has to move (`recovery`), or by which rule (`policy`).
"""

from typing import Any

import structlog
from redis.asyncio import Redis

from infra import keys
from infra.redis_client import broker_errors
from scheduler.contract import ClusterView, Kind, WorkerView
from scheduler.jobs import Jobs
from scheduler.policy import admission
from scheduler.policy import bounded as placement
from scheduler.queue import Tickets

log = structlog.get_logger(__name__)
WARM = Kind.WARM.value.encode()


class Moves:
    """The moves of one sweep, which begins with `view`."""

    def __init__(self, redis: Redis, jobs: Jobs, tickets: Tickets, bound: float, view: ClusterView) -> None:
        self._redis = redis
        self._jobs = jobs
        self._tickets = tickets
        self._bound = bound
        self._view = view

    async def empty(self, name: str) -> None:
        """Move what waits in the line of worker `name`, as far as others have room. Raises BrokerDown.

        A job without a place elsewhere stays: its worker may come back, and its own limit ends the wait.
        """
        with broker_errors():
            waiting: Any = await self._redis.zrange(keys.line(name), 0, -1, withscores=True)
            pipeline = self._redis.pipeline(transaction=False)
            for raw_id, _ in waiting:
                pipeline.hmget(keys.job(raw_id.decode()), "conversation", "agent", "model", "kind")
            records: Any = await pipeline.execute() if waiting else []
        for (raw_id, score), record in zip(waiting, records, strict=True):
            await self._move(raw_id.decode(), int(score // keys.LEVEL_WEIGHT), name, record)

    async def _move(self, job_id: str, level: int, name: str, record: list[bytes | None]) -> None:
        if record[0] is None or record[1] is None or record[2] is None or record[3] == WARM:
            # Its record ran out and only the books still name it; or it was to warm this very worker up.
            await self._jobs.cancel(job_id, name, level)
            return
        conversation, agent, model = record[0].decode(), record[1].decode(), record[2].decode()
        others = admission.serving(self._with_room(but=name), model)
        target = placement.choose(others, conversation, self._bound)
        if target is None or not await self._jobs.move(job_id, name, target, level, conversation):
            return
        log.info("job_moved", job=job_id, worker=name, to=target)
        self._view = _with_one_more(self._view, target, level)
        await self._tickets.publish(job_id, agent, target, level)

    def _with_room(self, but: str) -> ClusterView:
        limit = self._jobs.queue_limit
        fitting = (worker for worker in self._view.workers if sum(worker.queued) < limit and worker.info.name != but)
        return self._view.model_copy(update={"workers": tuple(fitting)})


def _with_one_more(view: ClusterView, name: str, level: int) -> ClusterView:
    def counted(worker: WorkerView) -> WorkerView:
        if worker.info.name != name:
            return worker
        queued = tuple(count + (number == level) for number, count in enumerate(worker.queued))
        return worker.model_copy(update={"queued": queued, "homes": worker.homes + 1})

    return view.model_copy(update={"workers": tuple(counted(worker) for worker in view.workers)})
