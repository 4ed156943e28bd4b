"""Another attempt at an answer that this worker or its engine lost.

Owns: which failures are worth one, giving the job back, and the ticket that brings it to a thread again.
Never: goes on with an answer (`resuming`); speaks for a worker that died (`scheduler.recovery`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep

import structlog

from infra.errors import BrokerDown, EngineLost, EngineTimeout, WorkerLost
from scheduler.claims import Claims
from scheduler.contract import ClaimedJob
from scheduler.stream import BROKER_PATIENCE_S, RETRY_S, Writer

log = structlog.get_logger(__name__)

Ticket = Callable[[ClaimedJob], None]


class Attempts:
    """The second chances of one worker's jobs."""

    def __init__(self, claims: Claims, publish: Ticket, rest: Callable[[float], None] = sleep) -> None:
        """`publish` puts a ticket for a job of this worker's line into its queue, and raises BrokerDown."""
        self._claims = claims
        self._publish = publish
        self._rest = rest

    @contextmanager
    def at(self, job: ClaimedJob, answer: Writer) -> Iterator[None]:
        """Inside the block the job is answered; when engine or worker is lost or silent there, it waits for another
        attempt.

        Raises what ended the answer when it has had them all.
        """
        try:
            yield
        except (EngineLost, EngineTimeout, WorkerLost) as error:
            answer.send_kept()  # what is told need not be made again
            if not self._waits_again(job, spared=isinstance(error, WorkerLost)):
                raise
            answer.leave()
            log.warning("job_tried_again", job=job.id, attempt=job.attempt, reason=error.message)
            self._send_ticket(job)

    def _waits_again(self, job: ClaimedJob, *, spared: bool) -> bool:
        """A broker that is away for a while costs no attempt. What was told and not sent yet is sent meanwhile."""
        for _ in range(int(BROKER_PATIENCE_S / RETRY_S)):
            try:
                return self._claims.give_up(job, spared=spared)
            except BrokerDown:
                self._rest(RETRY_S)
        return False  # the client is told of the first trouble

    def _send_ticket(self, job: ClaimedJob) -> None:
        try:
            self._publish(job)
        except BrokerDown as error:  # recovery replaces it
            log.warning("ticket_not_sent", job=job.id, reason=error.message)
