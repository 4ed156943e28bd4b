"""Takes queued jobs from long lines to workers that answer them sooner.

Owns: reading the lines that are looked at, making the moves, counting and logging them.
Never: decides which (`policy.rebalancing`), moves the jobs of a worker that cannot serve (`moving`).
"""

import asyncio
from collections.abc import Mapping

import structlog
from redis.asyncio import Redis

from infra import keys
from infra.observability import metrics
from infra.redis_client import broker_errors
from scheduler.contract import ClusterView, WorkerView
from scheduler.jobs import Jobs
from scheduler.policy.fleet import Fleet, fleet
from scheduler.policy.rebalancing import Books, Move, moves, to_look_at
from scheduler.queue import Tickets
from scheduler.standing import Lines, Standing

log = structlog.get_logger(__name__)
JOBS_LOOKED_AT = 64  # of a line


class Rebalancing:
    """The moves for balance of one API process. `balance` raises BrokerDown when Redis does not answer."""

    def __init__(self, redis: Redis, jobs: Jobs, tickets: Tickets) -> None:
        self._redis = redis
        self._lines = Lines(redis)
        self._jobs = jobs
        self._tickets = tickets

    async def balance(self, view: ClusterView) -> int:
        """Make the moves that pay now; how many were made. A cluster in which nobody waits costs nothing."""
        if not any(sum(worker.queued) for worker in view.workers):
            return 0
        models = {worker.info.model for worker in view.workers}
        return sum([await self._balance(view.model_copy(update={"workers": _of(view, model)})) for model in models])

    async def _balance(self, view: ClusterView) -> int:
        sites = fleet(view)
        workers = {worker.info.name: worker for worker in view.workers if worker.info.name in sites.sites}
        longest, idlest = to_look_at(
            {name: (sum(worker.queued), worker.running) for name, worker in workers.items()},
            {name: site.slots for name, site in sites.sites.items()},
        )
        if not longest or len(workers) == 1:
            return 0
        books, jobs = await self._read({name: workers[name] for name in {*longest, *idlest}}, sites)
        margin_ms, limit = self._jobs.move_margin_ms, self._jobs.queue_limit
        # Long lines take a fifth of a second, and the answers of this process must not stand still meanwhile.
        found = await asyncio.to_thread(moves, sites, books, view.now_ms, margin_ms, limit)
        return sum([await self._make(move, jobs[move.job.id]) for move in found])

    async def _read(
        self, workers: Mapping[str, WorkerView], sites: Fleet
    ) -> tuple[dict[str, Books], dict[str, Standing]]:
        books, jobs = {}, {}
        for name, worker in workers.items():
            line = await self._lines.line(name, JOBS_LOOKED_AT) if sum(worker.queued) else ()
            running = (
                await self._lines.running(name, sites.sites[name].token_ms, sites.now_ms) if worker.running else ()
            )
            jobs.update({job.id: job for job in line})
            kept = await self._lines.kept(name, sites.sites[name].slots, self._jobs.urgent_share)
            books[name] = Books(running, tuple(job.queued for job in line if job.queued), worker.homes, kept)
        return books, jobs

    async def _make(self, move: Move, job: Standing) -> bool:
        known, to = move.job.known, move.new.worker
        if not await self._jobs.move(job.id, move.old, move.new, job.level, known.conversation, for_balance=True):
            return False
        log.info(
            "job_rebalanced", job=job.id, worker=move.old, to=to, cost_here_ms=round(move.cost_here_ms),
            cost_there_ms=round(move.cost_there_ms),
        )  # fmt: skip
        metrics.MOVED.inc()
        await self._tickets.publish(job.id, job.agent, to, job.level)
        with broker_errors():
            await self._redis.hincrby(keys.COUNTS, "moved", 1)
        return True


def _of(view: ClusterView, model: str) -> tuple[WorkerView, ...]:
    return tuple(worker for worker in view.workers if worker.info.model == model)
