"""The worker's composition root: settings -> clients -> engine -> Celery worker.

Owns: which objects exist in a worker process and how they hold each other.
Never: does any work of theirs. `python -m workers.app` is a worker.
"""

import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from celery import Celery, signals
from celery.platforms import SecurityWarning

from infra import entry, keys, sizing
from infra.celery_app import agree, build
from infra.config import Settings
from infra.errors import StartError
from infra.observability import traces
from infra.redis_client import READ_TIMEOUT_S, sync_client
from scheduler.answering import CountRequests
from scheduler.claims import Claims
from scheduler.contract import TASK_NAME, ClaimedJob
from scheduler.queue import Tickets
from scheduler.rules import rules_of
from scheduler.stream import Append, Retries
from workers import metrics, pool
from workers.attempts import Attempts
from workers.consuming import Consuming
from workers.counting import count_forever
from workers.drain import SAVE_LIMIT_S, Drain
from workers.heartbeat import Heartbeat, new_incarnation
from workers.keeper import keep_forever, leave, save_all
from workers.lifecycle import drain_when_told
from workers.llama import command, model
from workers.memory import MemoryWatch, watch_memory
from workers.renewal import Renewal
from workers.running import Running, hear_cancellations
from workers.serving import Serving
from workers.tasks import Work
from workers.watchdog import Watchdog, watch_forever

COUNTING_THREADS = 2
ENGINE_GRACE_S = 5.0
THREAD_GRACE_S = 5.0


def serve(settings: Settings) -> None:
    """Be a worker until a signal comes. Raises StartError, ConfigError or BrokerDown with one clear sentence."""
    tracer = traces.traces(settings, "worker", settings.worker_name)
    redis = sync_client(settings.redis_url)
    app = build(settings)
    agree(app, redis)
    reader = sync_client(settings.redis_url, timeout_s=READ_TIMEOUT_S)
    serving = _serving(settings)
    running = Running()
    incarnation = new_incarnation()
    claims = Claims(redis, reader, settings.worker_name, incarnation, rules_of(settings))
    heartbeat = Heartbeat(claims, serving, running, incarnation, settings.lease_renew_s, settings.lease_lifetime_s)
    renewal = Renewal(serving, running, settings.drain_s)
    serving.on_condemned = renewal.condemn
    drain = Drain(serving, running, renewal)
    heartbeat.on_drain = drain.told
    with ExitStack() as house:
        house.callback(tracer.close)
        house.enter_context(metrics.served(settings))
        house.enter_context(heartbeat)
        house.enter_context(_engine(serving, heartbeat, running, settings.engine_start_timeout_s))
        retries = house.enter_context(Retries())
        counts = CountRequests(redis, reader, serving.model_name)
        counting = partial(count_forever, counts, serving)
        hearing = partial(hear_cancellations, claims, running)
        house.callback(_save_all, serving)
        keeping = partial(keep_forever, serving, settings.idle_slot_s)
        loops = _watches(settings, serving, running, claims, renewal)
        house.enter_context(_threads(hearing, keeping, drain.run, *loops, *[counting] * COUNTING_THREADS))
        drain_when_told(serving, running, settings.drain_s, partial(_announce_leave, serving, heartbeat))
        attempts = Attempts(claims, partial(_send_ticket, Tickets(app), settings.worker_name))
        work = Work(claims, Append(redis, settings.worker_name), retries, running, serving, attempts, tracer)
        _consume(app, work, serving, settings)


def _send_ticket(tickets: Tickets, worker: str, job: ClaimedJob) -> None:
    tickets.send(job.id, job.agent, worker, job.level)


def _watches(
    settings: Settings, serving: Serving, running: Running, claims: Claims, renewal: Renewal
) -> Sequence[Callable[[threading.Event], None]]:
    """Does the engine hang, does its memory grow, does Celery take tickets."""
    dog = Watchdog(serving, settings.hang_s, settings.first_token_timeout_s)
    consuming = Consuming(claims.tickets, running, serving, settings.drain_s)
    weighing = partial(watch_memory, MemoryWatch(serving, settings, renewal.plan))
    return partial(watch_forever, dog), partial(watch_forever, consuming), weighing


def _serving(settings: Settings) -> Serving:
    engine = command.choose_engine(settings)
    path = model.resolve(settings.model, settings.data_dir)
    profile = model.profile(path, is_demo=settings.model == "demo")
    return Serving(sizing.resolved(settings, path), engine, path, profile)


@contextmanager
def _engine(serving: Serving, heartbeat: Heartbeat, running: Running, start_timeout_s: float) -> Iterator[None]:
    """The engine runs inside the block. Raises StartError when it cannot start, or is over before the block is left:
    a worker without one must not stay as if it were loading."""
    serving.on_engine_gone = _end_this_process

    def on_change() -> None:
        heartbeat.soon()
        pool.wake()
        running.change()

    serving.on_change = on_change
    serving.engine.start()
    try:
        serving.engine.wait_ready(start_timeout_s)
        yield
    finally:
        serving.stop_engine(ENGINE_GRACE_S)
        if serving.engine_gone:
            raise StartError("engine", serving.engine.reason)


@contextmanager
def _threads(*targets: Callable[[threading.Event], None]) -> Iterator[None]:
    """Each `target(stopping)` in a thread of its own; all are told to stop at once, and waited for."""
    stopping = threading.Event()
    threads = [threading.Thread(target=target, args=(stopping,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join(timeout=THREAD_GRACE_S)


def _consume(app: Celery, work: Work, serving: Serving, settings: Settings) -> None:
    """Take tickets until a signal ends it; Celery's warm shutdown waits for running tasks."""
    app.task(work.generate, name=TASK_NAME, bind=False, ignore_result=True)
    pool.GatedPool.gate = staticmethod(serving.usable_slots)
    pool.GatedPool.begin = staticmethod(work.begin)

    def on_ready(**_: Any) -> None:
        serving.consuming.set()  # only now: a signal that came earlier would not have drained
        serving.on_change()
        _say_ready(serving)

    told: list[bool] = []

    def on_shutdown(**_: Any) -> None:
        # In a signal handler: a second signal that met `set` halfway would wait for the lock that it holds itself.
        if not told:
            told.append(True)
            serving.draining.set()

    signals.worker_ready.connect(on_ready, weak=False)
    signals.worker_shutting_down.connect(on_shutdown, weak=False)
    pool.GatedPool.stopping = staticmethod(on_shutdown)
    app.events.dispatcher_cls = "workers.consumer:Dispatcher"
    worker = app.Worker(
        hostname=f"{settings.worker_name}@{socket.gethostname()}",
        queues=[keys.queue(settings.worker_name)],
        concurrency=serving.slot_count,
        pool="workers.pool:GatedPool",
        consumer_cls="workers.consumer:GatheringConsumer",
        loglevel="WARNING",
        task_events=True,
        without_gossip=True,
        without_mingle=True,
        quiet=True,
    )
    pool.GatedPool.hub = worker.hub
    worker.start()


def _say_ready(serving: Serving) -> None:
    """For whom has started it by hand; elsewhere the log says it."""
    if sys.stdout.isatty():
        slots = "1 slot" if serving.slot_count == 1 else f"{serving.slot_count} slots"
        sentence = f"worker {serving.name} is ready: model {serving.model_name}, {slots}; Ctrl-C stops it"
        print(sentence, flush=True)


def _announce_leave(serving: Serving, heartbeat: Heartbeat) -> None:
    """In this order: who is given one of its conversations must already know that its cache is about to come."""
    if serving.caches is not None:
        leave(serving.caches)
    heartbeat.soon()


def _save_all(serving: Serving) -> None:
    """What the slots hold outlives the engine: conversations go on from the store, here or on another worker."""
    if serving.caches is not None:
        save_all(serving.caches, SAVE_LIMIT_S)


def _end_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _leave(*_: object) -> None:
    """Unwind: the engine is stopped and the lease given back."""
    raise SystemExit(0)


def main() -> int:
    """The exit code of this process."""
    warnings.filterwarnings("ignore", category=SecurityWarning)  # tasks are JSON ids; running as root adds no risk
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)  # while the model loads; Celery sets its own when it consumes
    return entry.run("worker", serve)


if __name__ == "__main__":
    sys.exit(main())
