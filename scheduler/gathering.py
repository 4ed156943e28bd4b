"""Requests that come close together are sent to one worker together, so that its engine batches them.

Owns: who is gathered, for how long, and to which worker a gathering goes.
Never: places any other request. Where no worker has a free slot nobody is gathered.

Gathered are requests without identity, of one model and of similar length: the same power of two of prompt tokens. The
batch n is how many of these have come within the last LATELY_S, the newest included. A gathering closes
min(100 ms, 50 ms x ln n) after it was opened, n being taken anew with each request that joins it, or as soon as it
fills the free slots of a worker. So a request that comes alone (n = 1) does not wait at all.
"""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable
from math import log
from time import monotonic

from scheduler.contract import ClusterView, JobSpec, WorkerView
from scheduler.policy import admission

LATELY_S = 0.1
STEP_S = 0.05
VIEW_AGE_S = 1.0  # what was sent since is not in the view of the cluster yet
MOST_BUCKETS = 256

Bucket = tuple[str, int]


def window_s(batch: int) -> float:
    """How long a gathering is open when `batch` requests have come lately: 0 for the first, at most 0.1."""
    return min(LATELY_S, STEP_S * log(max(1, batch)))


class Batch:
    """Requests that go to one worker together; `worker` is known once it is closed, None when they go the usual way."""

    def __init__(self, opened_s: float, room: int) -> None:
        self.opened_s = self.closes_s = opened_s
        self.room = room
        self.size = 0
        self.worker: str | None = None
        self.closed = asyncio.Event()


class Gathering:
    """The gatherings of one API process. When it is not `on`, every request goes its own way at once."""

    def __init__(self, view: Callable[[], ClusterView], *, on: bool) -> None:
        self._view = view
        self._on = on
        self._came: OrderedDict[Bucket, deque[float]] = OrderedDict()
        self._open: dict[Bucket, Batch] = {}
        self._sent: deque[tuple[float, str, int]] = deque()

    async def worker(self, spec: JobSpec) -> str | None:
        """The worker that `spec` goes to with others; None: wherever it is placed. Waits LATELY_S at most."""
        if not self._on or spec.identity.identified:
            return None
        bucket = (spec.request.model, spec.prompt_tokens.bit_length())
        now_s = monotonic()
        window = window_s(self._lately(bucket, now_s))
        room = self._roomiest(bucket)[1] if bucket not in self._open else 1
        if window == 0 or room < 1:
            return None
        batch = self._open.setdefault(bucket, Batch(now_s, room))
        batch.size += 1
        batch.closes_s = batch.opened_s + window
        if batch.size >= batch.room:
            self._close(bucket, batch)
        await self._wait(bucket, batch)
        return batch.worker

    async def _wait(self, bucket: Bucket, batch: Batch) -> None:
        while not batch.closed.is_set():
            left_s = batch.closes_s - monotonic()
            if left_s <= 0:
                self._close(bucket, batch)
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await batch.closed.wait()

    def _close(self, bucket: Bucket, batch: Batch) -> None:
        name, room = self._roomiest(bucket)
        batch.worker = name if room >= batch.size else None
        if batch.worker is not None:
            self._sent.append((monotonic(), batch.worker, batch.size))
        del self._open[bucket]
        batch.closed.set()

    def _lately(self, bucket: Bucket, now_s: float) -> int:
        """How many have come lately, this one included."""
        came = self._came.setdefault(bucket, deque())
        self._came.move_to_end(bucket)
        while came and came[0] < now_s - LATELY_S:
            came.popleft()
        came.append(now_s)
        if len(self._came) > MOST_BUCKETS:
            self._came.popitem(last=False)
        return len(came)

    def _roomiest(self, bucket: Bucket) -> tuple[str, int]:
        """The worker with the most free slots, by name among equals, and how many these are; its window is known to fit
        any prompt of the bucket, or not known."""
        model, bits = bucket
        while self._sent and self._sent[0][0] < monotonic() - VIEW_AGE_S:
            self._sent.popleft()
        able = admission.able(self._serving(model))
        fitting = [worker for worker in able if not 0 < worker.info.prompt_limit_tokens < 2**bits]
        rooms = [(self._room(worker), worker.info.name) for worker in fitting]
        room, name = max(rooms, key=lambda one: (one[0], one[1]), default=(0, ""))
        return name, room

    def _serving(self, model: str) -> ClusterView:
        return admission.serving(self._view(), model)

    def _room(self, worker: WorkerView) -> int:
        sent = sum(size for _, name, size in self._sent if name == worker.info.name)
        return len(worker.info.slots) - worker.running - sum(worker.queued) - sent
