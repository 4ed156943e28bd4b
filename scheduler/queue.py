"""Tickets to Celery.

Owns: publishing a ticket without ever blocking the event loop. A ticket names the job that caused it, so that Flower
has something to show, but it means "take the best job of your line".
Never: the order of jobs, the record, the worker's side.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from celery import Celery

from infra import keys
from infra.errors import BrokerDown
from scheduler.contract import TASK_NAME
from scheduler.ticket import Ticket, TicketWriter, describe

PUBLISH_LIMIT_S = 3.0
THREADS = 4


class Tickets:
    """Publishes tickets from a small thread pool of its own."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tickets")
        self._writer = TicketWriter(app)

    def written(self, job_id: str, agent: str, level: int) -> Ticket:
        """A ticket for the script that places the job; in the event loop."""
        return self._writer.write(job_id, agent, level)

    async def publish(self, job_id: str, agent: str, worker: str, level: int) -> None:
        """Put one ticket into the worker's queue. Raises BrokerDown when that takes longer than PUBLISH_LIMIT_S."""
        loop = asyncio.get_running_loop()
        sending = loop.run_in_executor(self._threads, self.send, job_id, agent, worker, level)
        try:
            async with asyncio.timeout(PUBLISH_LIMIT_S):
                await sending
        except TimeoutError as error:
            raise _refused(error) from error

    def send(self, job_id: str, agent: str, worker: str, level: int) -> None:
        """As `publish`, in a thread that may wait.

        A connection that has rested may be dead though the broker is there, so one failure proves nothing, and a ticket
        that was sent twice is harmless.
        """
        try:
            self._send(job_id, agent, worker, level)
        except Exception:  # kombu raises errors of several libraries here
            try:
                self._send(job_id, agent, worker, level)
            except Exception as error:
                raise _refused(error) from error

    def _send(self, job_id: str, agent: str, worker: str, level: int) -> None:
        self._app.send_task(
            TASK_NAME,
            **describe(job_id, agent, level),
            queue=keys.queue(worker),
            priority=level,
            retry=False,
            ignore_result=True,
        )

    def close(self) -> None:
        """Stop taking tickets; those being sent end by their own time limits."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._app.close()


def _refused(error: Exception) -> BrokerDown:
    return BrokerDown(f"the broker takes no ticket ({type(error).__name__})", retry_after_s=5)
