"""Submitting a job again whose record, or a piece of whose answer, the broker lost.

Owns: that whatever a lost attempt still writes is refused, and that the next one goes on from what the client was told.
Never: decides that a job is lost (`dispatch`), or how an answer goes on (`policy.resuming`).

The API process that holds the client knows the request and all that was said to it. Its attempts get numbers that no
lost one can have, so the job keeps its name: who follows it, shares it or gives it up need not know.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from infra.errors import BrokerDown, NoWorker, Refused
from scheduler.attempts import WAITS_AT_LEAST_MS
from scheduler.contract import Delta, Failed, Finished, JobSpec, Kind
from scheduler.follow import Feed
from scheduler.jobs import Jobs
from scheduler.policy.placement import Candidate, Known
from scheduler.policy.resuming import retold, said
from scheduler.queue import Tickets

log = structlog.get_logger(__name__)
ATTEMPTS_APART = 10  # more than one submission can have
RETRY_AFTER_S = 1

Place = Callable[[JobSpec], Awaitable[tuple[Known, Sequence[Candidate]]]]


class Resubmitting:
    """The submissions of one job after its first."""

    def __init__(self, feed: Feed, jobs: Jobs, tickets: Tickets, place: Place) -> None:
        """`place` says where a job may go."""
        self._feed = feed
        self._jobs = jobs
        self._tickets = tickets
        self._place = place
        self.submissions = 0
        self._at_it = asyncio.Lock()
        self.due = False

    async def submit(self, spec: JobSpec, worker: str, seen: int) -> str | None:
        """The worker in whose line the job waits now; the old `worker` where that has to be tried once more; None for a
        warm-up, which nobody waits for. `seen` is what `submissions` was before the broker was asked whether the job is
        lost. Raises BrokerDown."""
        if spec.identity.kind is Kind.WARM:
            return None
        if self._at_it.locked() or seen != self.submissions:  # another one who reads this answer is at it, or was
            return worker
        async with self._at_it:
            try:
                return await self._submit(spec, worker)
            except BrokerDown:
                raise
            except Refused as error:
                log.info("job_not_submitted_again_yet", job=spec.id, reason=error.message)
                return worker

    async def _submit(self, spec: JobSpec, worker: str) -> str:
        known, candidates = await self._place(spec)
        if not candidates:
            raise NoWorker("no worker is ready")
        self.due = True
        self.submissions += 1
        before = self.submissions * ATTEMPTS_APART
        told = self._feed.go_on_from(before)
        if told and isinstance(told[-1], Finished | Failed):
            self.due = False  # it has come to its end, which is not taken yet
            return worker
        await self._jobs.begin_again(spec.id, worker, self._feed.last_id, retold(said(told)))
        ticket = self._tickets.written(spec.id, spec.identity.agent, spec.level)
        admitted = await self._jobs.admit(_patient(spec, told), candidates, RETRY_AFTER_S, known, before, ticket)
        self.due = False
        log.warning("job_submitted_again", job=spec.id, worker=admitted.worker, begun=bool(told))
        return admitted.worker


def _patient(spec: JobSpec, told: Sequence[Delta]) -> JobSpec:
    """Whoever has a part of an answer waits longer for the rest."""
    wait_ms = max(spec.wait_limit_ms, WAITS_AT_LEAST_MS) if told else spec.wait_limit_ms
    return spec.model_copy(update={"wait_limit_ms": wait_ms})
