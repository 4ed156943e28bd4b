"""One job's deltas, written in order and fenced.

Owns: batching, sequence numbers, and the end of a job. The writer gives itself back: leaving the block without a last
delta ends the job as failed, so no client waits for a thread that died.
Never: reads a stream (`follow`), makes a delta.
"""

import threading
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from types import TracebackType
from typing import Self

from redis import Redis

from infra import keys
from infra.errors import BrokerDown, Cancelled, CorralError, Fenced
from infra.redis_client import broker_errors
from scheduler import scripts
from scheduler.contract import ClaimedJob, Delta, Failed, Finished, Started, encode_deltas

STREAM_LIFETIME_MS = 120_000


class Writer:
    """Writes the deltas of one claimed job; `__exit__` ends the job whatever happened.

    The first delta after a pause goes out at once, those that follow within the batch time travel together. The
    thread that generates and the flusher share it, so all of it is under one lock.
    """

    def __init__(self, append: "Append", flusher: "Flusher", job: ClaimedJob) -> None:
        self._append = append
        self._flusher = flusher
        self._job = job
        self._lock = threading.Lock()
        self._pending: list[Delta] = []
        self._next_write_s = 0.0
        self._sequence = 0
        self._lost: CorralError | None = None
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with self._lock:
            if self.ended:
                return
            last = failure(error) if error else Failed("internal", "the worker ended the answer without a reason")
            with suppress(CorralError):  # nobody is left to tell: the lease and recovery end the job
                self._send([last], "failed")

    def write(self, delta: Delta) -> None:
        """Send `delta`, at once or with those that follow within the batch time.

        Raises Fenced when the job is cancelled, gone or another attempt's, BrokerDown when Redis does not answer.
        """
        with self._lock:
            if self._lost:
                raise self._lost
            self._pending.append(delta)
            if isinstance(delta, Finished | Failed):
                self._flush("done" if isinstance(delta, Finished) else "failed")
            elif isinstance(delta, Started) or monotonic() >= self._next_write_s:
                self._flush("")
            elif len(self._pending) == 1:
                self._flusher.at(self._next_write_s, self)

    def flush_due(self) -> None:
        """Called by the flusher: send what waits. What goes wrong is raised by the next `write`."""
        with self._lock:
            if self._pending and not self.ended:
                try:
                    self._flush("")
                except CorralError as error:
                    self._lost = error

    def _flush(self, final: str) -> None:
        pending, self._pending = self._pending, []
        self._next_write_s = monotonic() + self._flusher.batch_s
        self._send(pending, final)

    def _send(self, deltas: list[Delta], final: str) -> None:
        self._sequence += 1
        self.ended = bool(final)
        if not self._append(self._job, self._sequence, encode_deltas(deltas), final):
            self.ended = True
            raise Fenced(f"job {self._job.id}: attempt {self._job.attempt} is over")


class Flusher:
    """One thread that wakes when a writer's batch time is over; idle, it costs nothing."""

    def __init__(self, batch_ms: int) -> None:
        self.batch_s = batch_ms / 1000
        self._due: list[tuple[float, int, Writer]] = []
        self._order = count()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout=5)

    def at(self, due_s: float, writer: Writer) -> None:
        """Flush `writer` at `due_s` on the monotonic clock."""
        with self._changed:
            heappush(self._due, (due_s, next(self._order), writer))
            self._changed.notify()

    def _run(self) -> None:
        while (writer := self._next()) is not None:
            writer.flush_due()

    def _next(self) -> Writer | None:
        with self._changed:
            while not self._stopping:
                wait_s = self._due[0][0] - monotonic() if self._due else None
                if wait_s is not None and wait_s <= 0:
                    return heappop(self._due)[2]
                self._changed.wait(wait_s)
        return None


class Append:
    """The one write operation on streams; shared by all threads of a worker."""

    def __init__(self, redis: Redis, worker: str) -> None:
        self._script = redis.register_script(scripts.text("append"))
        self._running = keys.running(worker)

    def __call__(self, job: ClaimedJob, sequence: int, payload: bytes, final: str) -> bool:
        """True when the entry stands in the stream, False when the job is no longer this attempt's."""
        names = [keys.job(job.id), keys.stream(job.id), self._running]
        with broker_errors():
            answer = self._script(names, [job.id, job.attempt, sequence, payload, STREAM_LIFETIME_MS, final])
        return bool(answer)


def failure(error: BaseException) -> Failed:
    """The last delta for an answer that an error ended; only our own errors speak to the client."""
    if isinstance(error, Cancelled | Fenced | BrokerDown):
        return Failed(error.code, error.message)
    if isinstance(error, CorralError):
        return Failed(error.code, error.message, error.retry_after_s, getattr(error, "prompt_tokens", None))
    return Failed("internal", "the worker met an unexpected error; its log has the details")
