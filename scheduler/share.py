"""One job and all who hold it.

Owns: the task that brings a job to a worker and takes in its answer; what one client sees of it; that a holder which
waits no longer takes the job out of its line only when nobody else wants it.
Never: decides which requests share a job, or for how long one is kept for a client that left (`sharing`).
"""

import asyncio
from time import monotonic

import structlog

from infra.errors import BrokerDown, CorralError, PromptTooLong
from scheduler.audience import Audience, Reader
from scheduler.contract import Delta, Failed, Finished, JobSpec
from scheduler.dispatch import Dispatcher
from scheduler.gathering import Gathering
from scheduler.placed import Placed
from scheduler.raising import Raising

log = structlog.get_logger(__name__)
TICK_S = 1.0  # how often a silent job's task looks whether it was stopped
WAIT_SLACK_S = 5.0  # one that waits longer by less needs no step in the store; each holder keeps to its own limit


class Share:
    """One job, the task that brings it to a worker and takes in its answer, and its audience."""

    def __init__(self, spec: JobSpec, key: bytes | None, raising: Raising) -> None:
        """`key` stands for what a request must have in common with this one to share it; None: nobody shares it."""
        self.spec = spec
        self.key = key
        self._raising = raising
        self.audience = Audience(keeps=key is not None, exact=spec.request.greedy)
        self.placed: Placed | None = None
        self.error: Exception | None = None
        self._level = spec.level
        self._waits_until_s = monotonic() + spec.wait_limit_ms / 1000
        self.counted: set[str] = set()  # parts of its work that are in the figures
        self.known = asyncio.Event()  # where it was placed, or why it was not
        self.task: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def joinable(self) -> bool:
        return self.audience.open and self.error is None and not self._stopped

    def may_be_joined_by(self, spec: JobSpec) -> bool:
        """An answer that was sampled is joined only by the client that left it: two samples are two answers."""
        return self.joinable and (spec.request.greedy or self.audience.expects(spec.identity.conversation))

    @property
    def over(self) -> bool:
        """Whether its last delta has come, or none will."""
        return self.error is not None or (self.placed is not None and self.placed.last is not None)

    async def run(self, dispatcher: Dispatcher, gathering: Gathering) -> None:
        """Bring the job to a worker and take in its answer, until that ends or `stop`. What goes wrong is `error`."""
        try:
            only = await gathering.worker(self.spec)
            async with dispatcher.submit(self.spec, only) as self.placed:
                self.known.set()
                # Marked too: a cancellation can get lost on its way through redis-py.
                while self.placed.last is None and not self._stopped:
                    self.audience.put(await self.placed.next(TICK_S))
        except Exception as error:
            self.error = error
            self.audience.wake()
        finally:
            self.known.set()

    async def lift(self, spec: JobSpec) -> None:
        """The most urgent of all who wait sets a queued job's level, the most patient its limit."""
        until_s = monotonic() + spec.wait_limit_ms / 1000
        higher, longer = spec.level < self._level, until_s > self._waits_until_s
        if self.placed is None or self.audience.begun or not (higher or longer):
            return
        old, new = self._level, min(self._level, spec.level)
        wait_ms = spec.wait_limit_ms + int(WAIT_SLACK_S * 1000)
        agent = self.spec.identity.agent
        try:
            await self._raising.lift(self.spec.id, agent, self.placed.worker, old, new, wait_ms)
        except BrokerDown as error:
            log.warning("job_not_raised", job=self.spec.id, reason=error.message)
            return
        self._level = min(self._level, new)  # another may have risen higher meanwhile
        self._waits_until_s = max(self._waits_until_s, until_s + WAIT_SLACK_S)
        self.placed.spec = self.placed.spec.model_copy(update={"level": self._level})

    async def leave_line(self, reader: Reader) -> bool:
        """`reader` does not want to wait longer: True when it has left a job that waits in its line. Raises BrokerDown.

        The job itself leaves only when nobody else wants it.
        """
        if self.audience.only(reader):
            return await self.withdraw()
        if self.placed is None or not await self._raising.waits(self.spec.id, self.placed.worker, self._level):
            return False
        if self.audience.only(reader):  # all others left while the broker was asked
            return await self.withdraw()
        self.audience.leave(reader)
        return True

    async def withdraw(self) -> bool:
        """Take the job out of its line; False when it runs. Nobody joins meanwhile. Raises BrokerDown."""
        if self.placed is None:
            return False
        self.audience.close()  # for good, unless the broker says that the job is there
        gone = await self.placed.withdraw()
        if not gone:
            self.audience.reopen()
        return gone

    def stop(self) -> None:
        """Give the job up unless it has ended; its task does that and ends."""
        self._stopped = True
        if self.task is not None and not self.over:
            self.task.cancel()

    async def ended(self) -> None:
        """Wait until the job was given back. Leaving early leaves its task alone."""
        if self.task is not None:
            await asyncio.wait([self.task])


class Held:
    """What one client holds of a share: the face of `Placed`, with the answer from its start.

    `shared` says that another client's request began the job, `may_return` that a client which hangs up may come back
    for the answer.
    """

    def __init__(self, spec: JobSpec, share: Share, *, shared: bool) -> None:
        self.spec = spec.model_copy(update={"id": share.spec.id}) if shared else spec
        self.share = share
        self.shared = shared
        self.may_return = True
        self.last: Finished | Failed | None = None
        self.reader: Reader = share.audience.join()

    def counts(self, part: str) -> bool:
        """Whether this part of the job's work is in no client's figures yet; now it is in this one's."""
        counts = part not in self.share.counted
        self.share.counted.add(part)
        return counts

    async def known(self) -> None:
        """Return when the job has been placed. Raises what kept it from that."""
        await self.share.known.wait()
        _ = self.placed

    @property
    def placed(self) -> Placed:
        if self.share.placed is None:
            raise self.share.error or CorralError("the request was given up while it was being placed")
        return self.share.placed

    @property
    def worker(self) -> str:
        return self.placed.worker

    @property
    def may_use_reserve(self) -> bool:
        return self.placed.may_use_reserve

    @property
    def eta_ms(self) -> int | None:
        """The wait that was expected when its own request came; None for one that joined, or when nobody knows."""
        return None if self.shared else self.placed.eta_ms

    @property
    def began_by(self) -> str:
        """The traceparent of the request that began the job."""
        return self.share.spec.traceparent

    @property
    def met_its_window(self) -> bool:
        return isinstance(self.last, Failed) and self.last.code == PromptTooLong.code

    async def next(self, timeout_s: float) -> list[Delta]:
        """The deltas that have come, in order; [] when none came within `timeout_s`. Ends with Finished or Failed.

        Raises what ended the job's task.
        """
        deltas = await self.reader.take(timeout_s)
        if deltas and isinstance(deltas[-1], Finished | Failed):
            self.last = deltas[-1]
        elif not deltas and self.share.error is not None:
            raise self.share.error
        return deltas

    async def withdraw(self) -> bool:
        """Leave a job that still waits in its line, and take it out when nobody else wants it; False when it runs."""
        left = await self.share.leave_line(self.reader)
        self.may_return = self.may_return and not left
        return left

    async def met_window(self) -> None:
        """This client's session was told that its prompt is too long: its compaction may use the reserve."""
        await self.placed.met_window(self.spec.identity)

    @property
    def waits(self) -> bool:
        """Whether the job waited in a line when `vanished` looked last."""
        return self.placed.waits

    async def vanished(self) -> bool:
        """Whether the broker has lost the record of a job that has not ended. Learns where the job was moved to."""
        return self.last is None and await self.placed.vanished()
