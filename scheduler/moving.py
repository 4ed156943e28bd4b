"""Takes the queued jobs of a worker that cannot serve them to others that can.

Owns: the moves of one sweep, each counted into the view on which the next is decided.
Never: decides whose line has to move (`recovery`), or by which rule (`policy`).
"""

import structlog
from redis.asyncio import Redis

from scheduler.contract import ClusterView, Kind, WorkerView
from scheduler.jobs import Jobs
from scheduler.policy import placement
from scheduler.policy.admission import ready
from scheduler.policy.fleet import Fleets
from scheduler.policy.load import Ahead, Load
from scheduler.queue import Tickets
from scheduler.standing import Lines, Standing

log = structlog.get_logger(__name__)


class Moves:
    """The moves of one sweep, which begins with `view`."""

    def __init__(self, redis: Redis, jobs: Jobs, tickets: Tickets, bound: float, view: ClusterView) -> None:
        self._lines = Lines(redis)
        self._jobs = jobs
        self._tickets = tickets
        self._bound = bound
        self._view = view.model_copy(update={"workers": ready(view)})  # from nobody who waits to one who waits, too
        self._loads = {worker.info.name: worker for worker in view.workers}
        self._fleets = Fleets()

    async def empty(self, name: str, *, begun_only: bool = False) -> None:
        """Move what waits in the line of worker `name`, as far as others have room; with `begun_only` only those jobs
        of which an attempt was lost. Raises BrokerDown.

        A job without a place elsewhere stays: its worker may come back, and its own limit ends the wait.
        """
        for job in await self._lines.line(name):
            if job.attempts or not begun_only:
                await self._move(job, name)

    async def _move(self, job: Standing, name: str) -> None:
        if job.queued is None or job.kind is Kind.WARM:
            # Its record ran out and only the books still name it; or it was to warm this very worker up.
            await self._jobs.cancel(job.id, name, job.level)
            return
        known = job.queued.known
        target = self._target(name, job.model, known)
        if target is None or not await self._jobs.move(job.id, name, target, job.level, known.conversation):
            return
        log.info("job_moved", job=job.id, worker=name, to=target.worker)
        self._loads[target.worker] = _with_one_more(self._loads[target.worker], job.level)
        await self._tickets.publish(job.id, job.agent, target.worker, job.level)

    def _target(self, but: str, model: str, known: placement.Known) -> placement.Candidate | None:
        fleet = self._fleets.of(self._view, model)
        found = [one for one in placement.candidates(fleet, known, self._bound) if one.worker != but]
        loads = {one.worker: _load(self._loads[one.worker], one.expected_ms) for one in found}
        choice = placement.choose(found, loads, known, self._jobs.move_margin_ms, self._jobs.queue_limit)
        return found[choice.index] if choice else None


def _load(worker: WorkerView, expected_ms: float) -> Load:
    """As far as a snapshot shows it: each job takes as long as the one to be placed, and is of another agent."""
    line = [
        Ahead(level, f"{level}:{nth}", expected_ms) for level, count in enumerate(worker.queued) for nth in range(count)
    ]
    return Load((expected_ms,) * worker.running, tuple(line), len(line), worker.homes)


def _with_one_more(worker: WorkerView, level: int) -> WorkerView:
    queued = tuple(count + (number == level) for number, count in enumerate(worker.queued))
    return worker.model_copy(update={"queued": queued, "homes": worker.homes + 1})
