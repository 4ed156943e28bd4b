"""Celery's thread pool with a gate.

Owns: how many tickets may be taken now. With `worker_disable_prefetch` Celery asks `num_processes` before each pop;
zero while the engine is not ready, so that jobs wait in the line and not in a worker that cannot serve them.
Never: runs a job by itself; Celery's own thread pool does.

Stock `threads` leaves the hub asleep when a task ends, so the next ticket waits up to half a second; this one wakes it.
It keeps the hub: kombu's own "current" one is none any more once a broken connection has reset it.
"""

from collections.abc import Callable
from typing import Any

from celery.concurrency.base import apply_target
from celery.concurrency.thread import ApplyResult
from celery.concurrency.thread import TaskPool as ThreadPool
from kombu.asynchronous import Hub


class GatedPool(ThreadPool):  # type: ignore[misc]  # celery is untyped
    """Threads = slots; `gate` says how many of them may be used now. The composition root sets it, and the hub of the
    worker, before that starts."""

    gate: Callable[[], int] = staticmethod(lambda: 0)
    hub: Hub | None = None

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
        def run() -> None:
            try:
                apply_target(target, args, kwargs, callback, accept_callback)
            finally:
                wake()

        return ApplyResult(self.executor.submit(run))


def wake() -> None:
    """Make the worker's hub look again at how many tickets it may take. Safe from any thread."""
    if GatedPool.hub is not None:
        GatedPool.hub.call_soon(_nothing)


def _nothing() -> None:
    """The hub evaluates the gate before each poll; waking it is enough."""
