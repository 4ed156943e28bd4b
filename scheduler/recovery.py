"""What becomes of the jobs of a worker that died, left, cannot serve, or came back as another process.

Owns: finding the dead, saying whose queued jobs have to move, giving running ones another attempt or, after the last
one, an end, replacing lost tickets, and forgetting workers of which nothing is left; after that, one look at the
balance of lines.
Never: places by rules of its own (`policy`), writes a lease.

Run by every API process, one at a time under a lock. A worker is dead when its lease is gone and this process has
been in unbroken contact with the broker for one whole lease lifetime: a frozen broker ends every lease at once, and
nobody has died.
"""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import structlog
from redis.asyncio import Redis

from infra import keys
from infra.errors import BrokerDown, WorkerLost
from infra.observability.traces import NO_TRACES, Traces
from infra.redis_client import being_cancelled, broker_errors
from scheduler import scripts
from scheduler.contact import Contact
from scheduler.contract import LEVELS, WorkerInfo, WorkerState
from scheduler.jobs import Jobs
from scheduler.lost_apis import SILENT_MS, LostApis
from scheduler.lost_attempts import LostAttempts
from scheduler.membership import Membership
from scheduler.moving import Moves
from scheduler.queue import Tickets
from scheduler.rebalancing import Rebalancing
from scheduler.stream import failure

log = structlog.get_logger(__name__)
PERIOD_S = 1.0
LOCK_MS = 5000
STUCK_S = 5.0  # a worker that is not ready for so long keeps its line only while no other can take it
SHORT_SWEEPS = 3  # a line is longer than its tickets for this many sweeps before tickets are replaced
DIED = failure(WorkerLost("the worker died while it was answering, as those before it; ask again", retry_after_s=1))


@dataclass(frozen=True, slots=True)
class Books:
    """What is written of one worker: job -> incarnation that claimed it, and how many jobs and tickets wait.

    A ticket whose thread keeps a slot free counts: it still waits for a job.
    """

    running: dict[str, str]
    waiting: int
    tickets: int


class Recovery:
    """The sweeper of one API process."""

    def __init__(
        self, redis: Redis, membership: Membership, jobs: Jobs, tickets: Tickets, bound: float, lease_s: float,
        traces: Traces = NO_TRACES,
    ) -> None:  # fmt: skip
        self._lost = LostAttempts(redis, traces)
        self._redis = redis
        self._membership = membership
        self._jobs = jobs
        self._tickets = tickets
        self._bound = bound
        self._lease_s = lease_s
        self._lost_apis = LostApis(redis)
        self._rebalancing = Rebalancing(redis, jobs, tickets)
        self._unlock = redis.register_script(scripts.text("unlock"))
        self._forget = redis.register_script(scripts.text("forget_worker"))
        self._owner = uuid.uuid4().hex
        self._short: dict[str, int] = {}
        self._unready_since_s: dict[str, float] = {}
        self.contact = Contact(jobs.announce)

    async def run(self) -> None:
        """Announce and sweep each second until cancelled; a long sweep does not hold up the announcement."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.contact.run())
            tasks.create_task(self._sweep_for_ever())

    async def _sweep_for_ever(self) -> None:
        while not being_cancelled():
            try:
                await self._sweep_locked()
            except BrokerDown as error:
                log.debug("sweep_waits", reason=error.message)
            await asyncio.sleep(PERIOD_S)

    async def _sweep_locked(self) -> None:
        with broker_errors():
            mine = await self._redis.set(keys.lock("recovery"), self._owner, nx=True, px=LOCK_MS)
            if mine:
                try:
                    await self.sweep()
                finally:
                    await self._unlock([keys.lock("recovery")], [self._owner])

    async def sweep(self) -> None:
        """One pass over all workers seen lately; what fails for one does not keep it from the others.

        Raises BrokerDown when it cannot begin.
        """
        with self.contact.watched():
            view = await self._membership.read()
        names, _ = await self._membership.known()
        infos = {worker.info.name: worker.info for worker in view.workers}
        moves = Moves(self._redis, self._jobs, self._tickets, self._bound, view)
        for name, books in zip(names, await self._books(names), strict=True):
            try:
                await self._look_after(name, infos.get(name), books, moves)
            except BrokerDown as error:
                log.warning("worker_not_looked_after", worker=name, reason=error.message)
        await self._rebalancing.balance(view)
        if self.contact.unbroken_s * 1000 > max(self._lease_s * 1000, SILENT_MS):
            await self._lost_apis.give_up()

    async def _books(self, names: Sequence[str]) -> list[Books]:
        pipeline = self._redis.pipeline(transaction=False)
        for name in names:
            pipeline.hgetall(keys.running(name))
            pipeline.zcard(keys.line(name))
            pipeline.get(keys.holding(name))
            for tickets in keys.level_lists(name):
                pipeline.llen(tickets)
        with broker_errors():
            flat: list[Any] = await pipeline.execute() if names else []
        width = 3 + len(LEVELS)
        rows = [flat[i : i + width] for i in range(0, len(flat), width)]
        return [
            Books({k.decode(): v.decode() for k, v in row[0].items()}, row[1], int(row[2] or 0) + sum(row[3:]))
            for row in rows
        ]

    async def _look_after(self, name: str, info: WorkerInfo | None, books: Books, moves: Moves) -> None:
        if info is None and self.contact.unbroken_s < self._lease_s:
            return
        again = await self._end_lost(name, info, books)
        books = replace(books, waiting=books.waiting + again)
        if again:
            self._short[name] = SHORT_SWEEPS  # what waits again has no ticket for certain
        if self._cannot_serve(name, info):
            if books.waiting:
                await moves.empty(name)
        elif info is not None and info.state is not WorkerState.READY and books.waiting:
            await moves.empty(name, begun_only=True)
        elif info is not None and info.state is WorkerState.READY:
            await self._replace_tickets(name, books)
        if info is None and not books.waiting and not books.running:
            await self._forget_worker(name)

    async def _end_lost(self, name: str, info: WorkerInfo | None, books: Books) -> int:
        """Give each job that a dead incarnation ran another attempt, after the last one an end. Returns how many wait
        again."""
        again = 0
        for job_id, incarnation in books.running.items():
            if info is not None and info.incarnation == incarnation:
                continue
            attempt = await self._lost.look(job_id, name)
            if await self._jobs.requeue(job_id, name, incarnation):
                again += 1
                attempt.tell()
                log.warning("job_tried_again", job=job_id, worker=name)
            elif await self._jobs.bury(job_id, name, incarnation, DIED):
                attempt.tell()
                log.warning("job_lost_with_worker", job=job_id, worker=name)
        return again

    def _cannot_serve(self, name: str, info: WorkerInfo | None) -> bool:
        leaves = info is None or info.state.leaves or info.state is WorkerState.RESTARTING
        if info is None or leaves or info.state is WorkerState.READY:
            self._unready_since_s.pop(name, None)
            return leaves
        since_s = self._unready_since_s.setdefault(name, monotonic())
        return monotonic() - since_s >= STUCK_S

    async def _replace_tickets(self, name: str, books: Books) -> None:
        """A popped ticket can vanish with its connection; its job would wait for ever."""
        missing = books.waiting - books.tickets
        self._short[name] = self._short.get(name, 0) + 1 if missing > 0 else 0
        if self._short[name] < SHORT_SWEEPS:
            return
        self._short[name] = 0
        with broker_errors():
            lost: Any = await self._redis.zrange(keys.line(name), 0, missing - 1, withscores=True)
        for raw_id, score in lost:
            await self._tickets.publish(raw_id.decode(), "", name, int(score // keys.LEVEL_WEIGHT))
        log.warning("tickets_replaced", worker=name, count=len(lost))

    async def _forget_worker(self, name: str) -> None:
        named = (keys.homes, keys.control, keys.back, keys.urgent, keys.holding)
        own = [name_of(name) for name_of in named] + keys.bindings(name) + keys.level_lists(name)
        names = [keys.lease(name), keys.WORKERS, keys.line(name), keys.running(name), *own]
        with broker_errors():
            if await self._forget(names, [name]):
                self._short.pop(name, None)
                log.info("worker_forgotten", worker=name)
