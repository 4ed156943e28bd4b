"""Celery's thread pool with a gate.

Owns: how many tickets may be taken now. With `worker_disable_prefetch` Celery asks `num_processes` before each pop;
zero while the engine is not ready, so that jobs wait in the line and not in a worker that cannot serve them. And saying
that it stops before it waits for its tasks: on SIGQUIT Celery waits first, and tells of it only then.
Never: runs a job by itself; Celery's own thread pool does.

Stock `threads` leaves the hub asleep when a task ends, so the next ticket waits up to half a second; this one wakes it.
It keeps the hub: kombu's own "current" one is none any more once a broken connection has reset it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from celery.concurrency.base import apply_target
from celery.concurrency.thread import ApplyResult
from celery.concurrency.thread import TaskPool as ThreadPool
from kombu.asynchronous import Hub

GIVES_WAY_S = 0.005


class Begun(AbstractContextManager[object], Protocol):
    """What a ticket is worked on in."""

    def give_way(self, limit_s: float) -> bool:
        """Wait until its thread waits for others, for `limit_s` at most; whether it does."""

    def give_back(self) -> None:
        """No thread will work on it."""


class _Nothing(nullcontext[object]):
    def give_way(self, _: float) -> bool:
        """There is nobody to give way to."""
        return True

    def give_back(self) -> None:
        """There is nothing to give back."""


class GatedPool(ThreadPool):  # type: ignore[misc]  # celery is untyped
    """Threads = slots; `gate` says how many of them may be used now, `begin` what a ticket is worked on in, `stopping`
    hears that it ends. The composition root sets these, and the hub of the worker, before that starts."""

    gate: Callable[[], int] = staticmethod(lambda: 0)
    begin: Callable[[], Begun] = staticmethod(_Nothing)
    stopping: Callable[[], None] = staticmethod(lambda: None)
    hub: Hub | None = None

    def on_stop(self) -> None:
        type(self).stopping()
        super().on_stop()

    def terminate_job(self, pid: int, signal: int | None = None) -> None:  # celery's signature
        """A thread cannot be killed. On SIGQUIT Celery asks for it; `stopping` gives each answer back in its time."""

    @property
    def num_processes(self) -> int:
        return min(int(self.limit), type(self).gate())

    def on_apply(
        self,
        target: Any,
        args: Any = None,
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        **_: Any,
    ) -> ApplyResult:
        begun = type(self).begin()

        def run() -> None:
            try:
                with begun:
                    apply_target(target, args, kwargs, callback, accept_callback)
            finally:
                wake()

        try:
            result = ApplyResult(self.executor.submit(run))
        except BaseException:
            begun.give_back()
            raise
        # What Celery does now would hold Python's lock in the moment in which the engine is to be given its work.
        begun.give_way(GIVES_WAY_S)
        return result


def wake() -> None:
    """Make the worker's hub look again at how many tickets it may take. Safe from any thread."""
    if GatedPool.hub is not None:
        GatedPool.hub.call_soon(_nothing)


def _nothing() -> None:
    """The hub evaluates the gate before each poll; waking it is enough."""
