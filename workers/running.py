"""The answers being generated now, how to stop one, and what tickets wait for whose slot is kept.

Owns: job -> its generation, the tickets in work, and the thread that hears cancellations and of new jobs.
Never: decides to cancel, or for whom a slot is kept.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog

from infra.errors import BrokerDown, Cancelled, WorkerLost
from scheduler.claims import Claims

log = structlog.get_logger(__name__)
RETRY_S = 0.5


class Stoppable(Protocol):
    """What can be stopped from another thread, at any time, more than once."""

    def cancel(self) -> None: ...


@dataclass(slots=True, eq=False)
class Attempt:
    """A worker that was taken for dead may meet its own job again while the attempt before has not noticed yet."""

    generation: Stoppable | None = None
    cut: bool = False  # by the worker, not by its client


class Running:
    """Shared by the threads of a worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, Attempt] = {}
        self._cancelled: set[str] = set()
        self._tasks = 0
        self._taken = 0
        self._changes = 0
        self._changed = threading.Condition(self._lock)
        self._stopped = False

    @contextmanager
    def task(self) -> Iterator[None]:
        """A ticket is in work inside the block, though its job is not known yet: the worker is not idle."""
        with self._lock:
            self._tasks += 1
            self._taken += 1
        try:
            yield
        finally:
            with self._lock:
                self._tasks -= 1
                self._changes += 1
                self._changed.notify_all()

    @contextmanager
    def job(self, job_id: str) -> Iterator[None]:
        """The job counts as running inside the block; its lease is renewed.

        Raises WorkerLost instead of Cancelled when the worker, not the client, ended it.
        """
        mine = Attempt()
        with self._lock:
            self._jobs[job_id] = mine
        try:
            yield
        except Cancelled:
            if self._stopped or mine.cut:
                raise WorkerLost("the worker was stopped before the answer ended; ask again", retry_after_s=1) from None
            raise
        finally:
            with self._lock:
                if self._jobs.get(job_id) is mine:
                    del self._jobs[job_id]
                    self._cancelled.discard(job_id)
                self._changed.notify_all()

    def attach(self, job_id: str, generation: Stoppable) -> None:
        """From now on cancelling the job stops `generation`; at once if it was cancelled already."""
        with self._lock:
            if job_id in self._jobs:
                self._jobs[job_id].generation = generation
            too_late = self._stopped or job_id in self._cancelled
        if too_late:
            generation.cancel()

    def jobs(self) -> dict[str, Attempt]:
        """What runs here now, and which attempt of each."""
        with self._lock:
            return dict(self._jobs)

    def cancel(self, job_id: str, only: Attempt | None = None) -> None:
        """Stop the job if it runs here, or just that attempt. One without a generation yet is stopped as soon as it has
        one."""
        with self._lock:
            attempt = self._jobs.get(job_id)
            if only is not None and attempt is not only:
                return
            if attempt is not None:
                self._cancelled.add(job_id)
        if attempt is not None and attempt.generation is not None:
            attempt.generation.cancel()

    def stop_all(self) -> None:
        """Stop every job, now and from now on; their clients are told that the worker was stopped."""
        with self._lock:
            self._stopped = True
        for job_id in self.jobs():
            self.cancel(job_id)

    def cut_all(self) -> None:
        """Stop every job that runs now, for another attempt elsewhere; those that begin later are left alone."""
        with self._lock:
            for attempt in self._jobs.values():
                attempt.cut = True
        for job_id in self.jobs():
            self.cancel(job_id)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing runs and no ticket is in work; False when that is not so after `timeout_s`."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._jobs and not self._tasks, timeout_s)

    @property
    def tickets(self) -> int:
        """Tickets in work that have no job yet."""
        with self._lock:
            return self._tasks - len(self._jobs)

    @property
    def in_work(self) -> int:
        """Tickets in work, with a job or without."""
        return self._tasks

    @property
    def taken(self) -> int:
        """Tickets taken since the worker began."""
        return self._taken

    @property
    def changes(self) -> int:
        """Grows with all that may give a waiting ticket its job: `wait_change` takes it from before one has asked."""
        with self._lock:
            return self._changes

    def change(self) -> None:
        """A job came, or the worker is no longer what it was: tickets that wait look again."""
        with self._lock:
            self._changes += 1
            self._changed.notify_all()

    def wait_change(self, seen: int, timeout_s: float) -> None:
        """Wait until `changes` is no longer `seen`, for `timeout_s` at most; a ticket's end is a change, too."""
        with self._lock:
            self._changed.wait_for(lambda: self._changes != seen, timeout_s)


def hear_cancellations(claims: Claims, running: Running, stopping: threading.Event) -> None:
    """Cancel jobs as their clients leave, and wake tickets as jobs come, until `stopping`.

    A broken connection is tried again.
    """
    while not stopping.is_set():
        try:
            for job_id in claims.cancellations():
                if job_id:
                    running.cancel(job_id)
                else:
                    running.change()
        except BrokerDown as error:
            log.warning("cancellations_wait", reason=error.message)
            stopping.wait(RETRY_S)
