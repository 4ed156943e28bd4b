"""One job's deltas, written in order and fenced.

Owns: sequence numbers, keeping what the broker does not take yet, and the end of a job. The writer gives itself back:
leaving the block without a last delta ends the job as failed, so no client waits for a thread that died.
Never: reads a stream (`follow`), makes a delta.
"""

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from types import TracebackType
from typing import Self

from redis import Redis

from infra import keys
from infra.errors import BrokerDown, Cancelled, CorralError, Fenced
from infra.redis_client import broker_errors
from infra.redis_step import Step
from scheduler import scripts
from scheduler.contract import ClaimedJob, Delta, Failed, Finished, Started, encode_deltas

STREAM_LIFETIME_MS = 120_000
RETRY_S = 0.5
BROKER_PATIENCE_S = 30.0  # a broker that is away for less costs no answer


@dataclass(frozen=True, slots=True)
class Entry:
    """What goes into the stream in one write; the same sequence number makes a repeated write harmless."""

    sequence: int
    payload: bytes
    final: str


class Writer:
    """Writes the deltas of one claimed job; `__exit__` ends the job whatever happened.

    While the broker is away deltas are kept, and sent in order when it is back; so is the end, even after the block was
    left. The thread that generates and the one that tries again share it, so all of it is under one lock.
    """

    def __init__(self, append: "Append", retries: "Retries", job: ClaimedJob) -> None:
        self._append = append
        self._retries = retries
        self._job = job
        self._lock = threading.Lock()
        self._pending: list[Delta] = []
        self._unsent: deque[Entry] = deque()
        self._away_since_s: float | None = None
        self._sequence = 0
        self._lost: CorralError | ValueError | None = None
        self.started: Started | None = None  # as it was told
        self.finished: Finished | None = None
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with self._lock:
            if self.ended:
                return
            last = failure(error) if error else Failed("internal", "the worker ended the answer without a reason")
            self._pending.append(last)
            with suppress(Fenced):  # somebody else has ended the job
                try:
                    self._send("failed")
                except ValueError:  # something of what was held cannot be written; the end can
                    self._pending = [last]
                    self._send("failed")

    def write(self, *deltas: Delta) -> None:
        """Send `deltas`, in one entry with those that were held.

        Raises Fenced when the job is cancelled, gone or another attempt's, BrokerDown when Redis has not answered for
        BROKER_PATIENCE_S.
        """
        with self._lock:
            self._take(deltas)
            if not self._pending:
                return
            last = self._pending[-1]
            if isinstance(last, Finished | Failed):
                self.finished = last if isinstance(last, Finished) else None
                self._send("done" if self.finished else "failed")
            elif not self._unsent:  # else they go with the next try
                self._send("")

    def hold(self, *deltas: Delta) -> None:
        """As `write`, but with whatever is written next, which is soon."""
        with self._lock:
            self._take(deltas)

    def leave(self) -> None:
        """Another attempt goes on from what stands in the stream: nothing more is written of this one."""
        with self._lock:
            self._pending, self.ended = [], True
            self._unsent.clear()

    def send_kept(self) -> None:
        """Send all that waits. What goes wrong is raised by the next `write`."""
        with self._lock:
            try:
                self._send_unsent()
                if self._pending and not self._unsent and not self.ended:
                    self._send("")
            except (CorralError, ValueError) as error:
                self._lost = error

    def _take(self, deltas: Sequence[Delta]) -> None:
        if self._lost:
            raise self._lost
        self._pending += deltas
        self.started = next((delta for delta in deltas if isinstance(delta, Started)), self.started)

    def _send(self, final: str) -> None:
        pending, self._pending = self._pending, []
        payload = encode_deltas(pending)  # what cannot be written is not kept: the end would not get past it
        self._sequence += 1
        self._unsent.append(Entry(self._sequence, payload, final))
        self.ended = bool(final)
        self._send_unsent()

    def _send_unsent(self) -> None:
        while self._unsent:
            entry = self._unsent[0]
            try:
                stands = self._append(self._job, entry.sequence, entry.payload, entry.final)
            except BrokerDown as error:
                self._try_again_later(error)
                return
            self._unsent.popleft()
            self._away_since_s = None
            if not stands:
                self.ended = True
                self._unsent.clear()
                raise Fenced(f"job {self._job.id}: attempt {self._job.attempt} is over")

    def _try_again_later(self, error: BrokerDown) -> None:
        """Raises `error` when an answer in the making has waited long enough."""
        now_s = monotonic()
        self._away_since_s = self._away_since_s or now_s
        away_s = now_s - self._away_since_s
        if self.ended and away_s * 1000 > STREAM_LIFETIME_MS:
            self._unsent.clear()  # by now the job's keys have run out
            return
        self._retries.at(now_s + RETRY_S, self)
        if not self.ended and away_s >= BROKER_PATIENCE_S:
            raise error


class Retries:
    """One thread that wakes when the broker is to be tried again; idle, it costs nothing."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Writer]] = []
        self._order = count()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="retries", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout=5)

    def at(self, due_s: float, writer: Writer) -> None:
        """Send what `writer` keeps at `due_s` on the monotonic clock."""
        with self._changed:
            heappush(self._due, (due_s, next(self._order), writer))
            self._changed.notify()

    def _run(self) -> None:
        while (writer := self._next()) is not None:
            writer.send_kept()

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
        self._step = Step(redis, scripts.text("append"))
        self._running = keys.running(worker)

    def __call__(self, job: ClaimedJob, sequence: int, payload: bytes, final: str) -> bool:
        """True when the entry stands in the stream, False when the job is no longer this attempt's."""
        names = [keys.job(job.id), keys.stream(job.id), self._running]
        with broker_errors():
            answer = self._step(names, [job.id, job.attempt, sequence, payload, STREAM_LIFETIME_MS, final])
        return bool(answer)


def failure(error: BaseException) -> Failed:
    """The last delta for an answer that an error ended; only our own errors speak to the client."""
    if isinstance(error, Cancelled | Fenced | BrokerDown):
        return Failed(error.code, error.message)
    if isinstance(error, CorralError):
        return Failed(error.code, error.message, error.retry_after_s, getattr(error, "prompt_tokens", None))
    return Failed("internal", "the worker met an unexpected error; its log has the details")
