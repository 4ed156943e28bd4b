"""What becomes of the jobs of a worker that died, left or came back as another process.

Owns: finding the dead, moving their queued jobs, ending their running ones, replacing lost tickets, and saying each
second that this API process itself lives.
Never: places by rules of its own (`policy`), writes a lease.

Run by every API process, one at a time under a lock. A worker is dead when its lease is gone and this process has
been in unbroken contact with the broker for one whole lease lifetime: a frozen broker ends every lease at once, and
nobody has died.
"""

import asyncio
import uuid
from time import monotonic
from typing import Any

import structlog
from redis.asyncio import Redis

from infra import keys
from infra.errors import BrokerDown, WorkerLost
from infra.redis_client import being_cancelled, broker_errors
from scheduler import scripts
from scheduler.contract import LEVELS, ClusterView, WorkerInfo, WorkerState
from scheduler.jobs import Jobs
from scheduler.membership import Membership
from scheduler.policy import placement
from scheduler.queue import Tickets
from scheduler.stream import failure

log = structlog.get_logger(__name__)
PERIOD_S = 1.0
LOCK_MS = 5000
SLOW_S = 1.0  # a sweep that takes longer means that the broker was away
SHORT_SWEEPS = 3  # a line is longer than its tickets for this many sweeps before tickets are replaced


class Recovery:
    """The sweeper of one API process."""

    def __init__(
        self, redis: Redis, membership: Membership, jobs: Jobs, tickets: Tickets, bound: float, lease_s: float
    ) -> None:
        self._redis = redis
        self._membership = membership
        self._jobs = jobs
        self._tickets = tickets
        self._bound = bound
        self._lease_s = lease_s
        self._unlock = redis.register_script(scripts.text("unlock"))
        self._owner = uuid.uuid4().hex
        self._contact_since_s: float | None = None
        self._short: dict[str, int] = {}

    async def run(self) -> None:
        """Sweep each second until cancelled."""
        while not being_cancelled():
            started_s = monotonic()
            try:
                await self._jobs.announce()
                await self._sweep_locked()
            except BrokerDown:
                self._contact_since_s = None
            if monotonic() - started_s > SLOW_S:
                self._contact_since_s = None
            await asyncio.sleep(PERIOD_S)

    async def _sweep_locked(self) -> None:
        if self._contact_since_s is None:
            self._contact_since_s = monotonic()
        with broker_errors():
            mine = await self._redis.set(keys.lock("recovery"), self._owner, nx=True, px=LOCK_MS)
            if mine:
                try:
                    await self.sweep()
                finally:
                    await self._unlock([keys.lock("recovery")], [self._owner])

    async def sweep(self) -> None:
        """One pass over all workers seen lately. Raises BrokerDown."""
        view = await self._membership.read()
        alive = {worker.info.name: worker.info for worker in view.workers}
        names, _ = await self._membership.known()
        for name in names:
            info = alive.get(name)
            if info is None and not self._contact_is_long():
                continue
            await self._bury_running(name, info)
            if info is None or info.state is WorkerState.DRAINING:
                await self._move_queued(name, view)
            elif info.state is WorkerState.READY:
                await self._replace_tickets(name)

    def _contact_is_long(self) -> bool:
        return self._contact_since_s is not None and monotonic() - self._contact_since_s >= self._lease_s

    async def _bury_running(self, name: str, info: WorkerInfo | None) -> None:
        with broker_errors():
            running: Any = await self._redis.hgetall(keys.running(name))
        last = failure(WorkerLost("the worker died while it was answering; ask again", retry_after_s=1))
        for raw_id, raw_incarnation in running.items():
            job_id, incarnation = raw_id.decode(), raw_incarnation.decode()
            dead = info is None or info.incarnation != incarnation
            if dead and await self._jobs.bury(job_id, name, incarnation, last):
                log.warning("job_lost_with_worker", job=job_id, worker=name)

    async def _move_queued(self, name: str, view: ClusterView) -> None:
        with broker_errors():
            waiting: Any = await self._redis.zrange(keys.line(name), 0, -1)
            if not waiting and name not in {worker.info.name for worker in view.workers}:
                await self._redis.zrem(keys.WORKERS, name)
        others = view.model_copy(update={"workers": tuple(w for w in view.workers if w.info.name != name)})
        for raw_id in waiting:
            await self._move_one(raw_id.decode(), name, others)

    async def _move_one(self, job_id: str, name: str, view: ClusterView) -> None:
        with broker_errors():
            record: Any = await self._redis.hmget(keys.job(job_id), "level", "conversation", "agent")
        if record[0] is None:
            with broker_errors():
                await self._redis.zrem(keys.line(name), job_id)
            return
        level, conversation, agent = int(record[0]), record[1].decode(), record[2].decode()
        target = placement.choose(view, conversation, self._bound)
        if target is None:
            return  # it waits where it is: its worker may come back, its own limit ends the wait
        if await self._jobs.move(job_id, name, target, level, conversation):
            log.info("job_moved", job=job_id, worker=name, to=target)
            await self._tickets.publish(job_id, agent, target, level)

    async def _replace_tickets(self, name: str) -> None:
        """A popped ticket can vanish with its connection; its job would wait for ever."""
        with broker_errors():
            waiting = await self._redis.zcard(keys.line(name))
            tickets = sum([await self._redis.llen(keys.level_list(name, level)) for level in LEVELS]) if waiting else 0
        missing = waiting - tickets
        self._short[name] = self._short.get(name, 0) + 1 if missing > 0 else 0
        if self._short[name] < SHORT_SWEEPS:
            return
        self._short[name] = 0
        with broker_errors():
            lost: Any = await self._redis.zrange(keys.line(name), 0, missing - 1, withscores=True)
        for raw_id, score in lost:
            await self._tickets.publish(raw_id.decode(), "", name, int(score // keys.LEVEL_WEIGHT))
        log.warning("tickets_replaced", worker=name, count=len(lost))
