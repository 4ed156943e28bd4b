"""Who takes in the answer of one job, and what each has yet to be given.

Owns: the readers of a job, what was said so far (kept for those who come later), and those who left and may come back.
Never: runs the job, a store, a clock; times are the caller's, in seconds of one clock.
"""

import asyncio
import contextlib
from collections.abc import Hashable, Sequence
from math import inf

from scheduler.contract import Delta, Failed, Finished, TextDelta, ThinkingDelta, ToolCall

DELTA_BYTES = 110  # of a delta with a short text, as CPython keeps it
KEPT_BYTES = 4 * 2**20  # of one answer; about 38,000 deltas of a token each


class Reader:
    """One reader's place in the answer. `ended`: the last delta was given out; `late`: it had come before this one."""

    def __init__(self, said: Sequence[Delta], *, late: bool = False) -> None:
        self.ended = False
        self.late = late
        self._unread = list(said)
        self._arrived = asyncio.Event()

    def put(self, deltas: Sequence[Delta]) -> None:
        self._unread += deltas
        self._arrived.set()

    def wake(self) -> None:
        """Let whoever waits look again, though nothing has come."""
        self._arrived.set()

    async def take(self, timeout_s: float) -> list[Delta]:
        """What was not given out yet, in order; waits up to `timeout_s` for it, then returns []."""
        if not self._unread:
            # Not wait_for: on Python 3.11 it can swallow a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
        return self.take_now()

    def take_now(self) -> list[Delta]:
        """As `take`, without waiting."""
        self._arrived.clear()
        deltas, self._unread = self._unread, []
        self.ended = self.ended or (bool(deltas) and isinstance(deltas[-1], Finished | Failed))
        return deltas


class Audience:
    """The readers of one job. What was said is kept for later ones only with `keeps`, and up to KEPT_BYTES.

    `exact`: whoever asks gets this answer, so one joins, too, while another who was there before its end still reads.
    """

    def __init__(self, *, keeps: bool, exact: bool = False) -> None:
        self._exact = exact
        self._over = False
        self._readers: set[Reader] = set()
        self._leavers: dict[Hashable, float] = {}
        self._said: list[Delta] | None = [] if keeps else None
        self._said_bytes = 0
        self._closed = False
        self.begun = False

    @property
    def open(self) -> bool:
        """Whether a new reader may join: it would be given the answer from its start, and another who has not read the
        end is there or may come back; one that came late does not count, or an answer could live for ever."""
        if self._said is None or self._closed:
            return False
        if self._exact and self._over:
            return bool(self._leavers) or any(not (reader.ended or reader.late) for reader in self._readers)
        return not any(reader.ended for reader in self._readers)

    @property
    def read(self) -> bool:
        """Whether anybody reads now."""
        return bool(self._readers)

    @property
    def held_until_s(self) -> float:
        """Until when the answer is wanted: inf while it is read, else until the last one who left gives it up."""
        return inf if self._readers else max(self._leavers.values(), default=-inf)

    def only(self, reader: Reader) -> bool:
        """Whether nobody but `reader` wants the answer."""
        return not self._leavers and self._readers <= {reader}

    def join(self) -> Reader:
        """A new reader, at the start of the answer."""
        reader = Reader(self._said or (), late=self._over)
        self._readers.add(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        """Leaving twice is leaving once."""
        if reader.ended and not self._exact:
            self._closed = True  # its client has the end: what is asked from now on is a new question
        self._readers.discard(reader)

    def expect(self, who: Hashable, until_s: float) -> None:
        """`who` left and may come back: the answer is wanted until then."""
        self._leavers[who] = max(until_s, self._leavers.get(who, -inf))

    def expects(self, who: Hashable) -> bool:
        """Whether `who` left and may come back."""
        return who in self._leavers

    def expect_no_more(self, who: Hashable) -> None:
        """`who` came back, or went on to something else."""
        self._leavers.pop(who, None)

    def close(self) -> None:
        """Nobody joins any more."""
        self._closed = True

    def reopen(self) -> None:
        """Take `close` back."""
        self._closed = False

    def put(self, deltas: Sequence[Delta]) -> None:
        """The next deltas of the answer, for all who read and all who come."""
        if not deltas:
            return
        self.begun = True
        self._over = isinstance(deltas[-1], Finished | Failed)
        if isinstance(deltas[-1], Failed):
            self.close()  # who asks from now on wants another try
        for reader in self._readers:
            reader.put(deltas)
        if self._said is not None:
            self._said += deltas
            self._said_bytes += sum(map(_bytes, deltas))
            if self._said_bytes > KEPT_BYTES:
                self._said = None

    def wake(self) -> None:
        """Let all who wait look again."""
        for reader in self._readers:
            reader.wake()


def _bytes(delta: Delta) -> int:
    if isinstance(delta, TextDelta | ThinkingDelta):
        return DELTA_BYTES + len(delta.text)
    return DELTA_BYTES + len(delta.arguments) if isinstance(delta, ToolCall) else DELTA_BYTES
