"""A job that has been placed, as its API process holds it.

Owns: what comes back of it, taking it out of its line, and noticing that the broker has lost it.
Never: places a job (`dispatch`), reads a stream (`follow`).
"""

from time import monotonic

from scheduler.contract import Delta, Failed, Finished, Identity, JobSpec, Started
from scheduler.follow import Feed
from scheduler.jobs import ENDED_LIFETIME_MS, Jobs
from scheduler.policy.accuracy import Accuracy
from scheduler.resubmitting import Resubmitting
from scheduler.stream import STREAM_LIFETIME_MS

LIFE_SLACK_S = 2.0  # a record that is gone so soon before it had to run out may have run out


class Placed:
    """A job in a worker's line, and what comes back of it. What asks the broker raises BrokerDown.

    `eta_ms` is the wait that was expected when it came, 0 for none; None: the broker did not say.
    """

    def __init__(
        self, spec: JobSpec, worker: str, feed: Feed, jobs: Jobs, accuracy: Accuracy, again: Resubmitting
    ) -> None:
        self.spec = spec
        self.worker = worker
        self.may_use_reserve = False
        self.waits = False  # in a line, as the last look showed it, and nothing has come since
        self.last: Finished | Failed | None = None
        self.eta_ms: int | None = None
        self._accuracy = accuracy
        self._feed = feed
        self._jobs = jobs
        self._again = again
        self._lives_until_s = monotonic() + (spec.wait_limit_ms + ENDED_LIFETIME_MS) / 1000

    async def next(self, timeout_s: float) -> list[Delta]:
        """The deltas that have come, in order; [] when none came within `timeout_s`. Ends with Finished or Failed."""
        deltas = await self._feed.deltas(timeout_s)
        if deltas:
            self.waits = False
            self._lives_until_s = monotonic() + STREAM_LIFETIME_MS / 1000
        if deltas and isinstance(deltas[-1], Finished | Failed):
            self.last = deltas[-1]
        for delta in deltas:
            if isinstance(delta, Started) and delta.attempt == 1 and self.eta_ms is not None:
                self._accuracy.learn(self.eta_ms, delta.queue_ms)
        return deltas

    async def withdraw(self) -> bool:
        """Take the job out of its line if it still waits there; True when it is gone."""
        state = await self._jobs.cancel(self.spec.id, self.worker, self.spec.level, only_queued=True)
        # A first try whose answer was lost on the way leaves no record either.
        return state == "queued" or (state == "over" and self.last is None and await self._is_gone())

    async def met_window(self, who: Identity | None = None) -> None:
        """The session was told that its prompt is too long: its compaction may use the reserve.

        `who` is whoever was told; None: the one that the job is of.
        """
        who = who or self.spec.identity
        if who.session:
            await self._jobs.met_window(who.key_name, who.session)

    async def vanished(self) -> bool:
        """Whether a job that has not ended is lost for good. Learns where the job was moved to.

        One whose record, or a piece of whose answer, the broker lost is submitted again; not one whose record has run
        out, because nobody could take it for so long.
        """
        submissions = self._again.submissions
        gone = await self._is_gone()
        if self.last is not None or not (gone or self._feed.torn or self._again.due):
            return False
        if gone and not self._again.due and monotonic() >= self._lives_until_s - LIFE_SLACK_S:
            return True
        worker = await self._again.submit(self.spec, self.worker, submissions)
        self.worker = worker or self.worker
        return worker is None

    async def _is_gone(self) -> bool:
        found = await self._jobs.whereabouts(self.spec.id)
        if found is not None:
            self.worker, left_s, self.waits = found
            self._lives_until_s = monotonic() + left_s
        return found is None
