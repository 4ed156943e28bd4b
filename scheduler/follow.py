"""Reads the deltas of all of one API process's jobs, over one connection.

Owns: the multiplexed reader, what each follower has not consumed yet, and seeing that a stream has lost a piece.
Never: writes a stream.

One blocking XREAD over all followed streams, because a blocking reader per stream exhausts connections. A new job
joins at once through this process's wake stream, which its admission writes to: no gap between asking and following.
Where entries come one upon the other, each read takes those of a few milliseconds: a read costs ten times an entry.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import structlog
from redis.asyncio import Redis

from infra import keys
from infra.errors import BrokerDown
from infra.redis_client import BLOCK_MS, being_cancelled, broker_errors
from infra.redis_script import Line
from scheduler.contract import Delta, decode_deltas

log = structlog.get_logger(__name__)
RETRY_S = 0.2
APART_S = 0.003  # reads begin, unless the last one had to wait for longer
GIVES_WAY_S = 0.002  # to the admission for which the reader wakes: its job's first delta takes longer to come
TURNS = 3  # of the loop, until what a read brought is on its way to its client
MOST_ENTRIES = 500
START = "0"
READ = ("XREAD", "COUNT", MOST_ENTRIES, "BLOCK", BLOCK_MS, "STREAMS")


class Feed:
    """What has come for one stream and was not taken yet.

    An attempt numbers its entries without a gap. A broker that came back without its last writes, or a copy that takes
    its place, can lack some: the stream is `torn`, and nothing of it is given out until `go_on_from`.
    """

    def __init__(self) -> None:
        self.last_id = START
        self.torn = False
        self._told: list[bytes] = []
        self._least_attempt = 0
        self._payloads: list[bytes] = []
        self._arrived = asyncio.Event()

    def put(self, entry_id: str, payload: bytes) -> None:
        if _attempt(entry_id) < self._least_attempt or self.torn:
            return
        if not _follows(entry_id, self.last_id):
            self.tear(_attempt(entry_id))
            return
        self.last_id = entry_id
        self._told.append(payload)
        self._payloads.append(payload)
        self._arrived.set()

    def tear(self, attempt: int) -> None:
        """What that attempt wrote does not go on from what has come; of one that counts no more it is no matter."""
        self.torn = attempt >= self._least_attempt

    def go_on_from(self, attempt: int) -> list[Delta]:
        """All that has come so far; from now on only what that attempt, or a later one, writes is taken."""
        self.torn, self._least_attempt = False, attempt
        return [delta for payload in self._told for delta in decode_deltas(payload)]

    async def take(self, timeout_s: float) -> list[bytes]:
        """Everything that has come, in order; waits up to `timeout_s` for the first, then returns []."""
        if not self._payloads:
            # Not wait_for: on Python 3.11 it can swallow a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
        payloads, self._payloads = self._payloads, []
        self._arrived.clear()
        return payloads

    async def deltas(self, timeout_s: float) -> list[Delta]:
        """As `take`, decoded."""
        return [delta for payload in await self.take(timeout_s) for delta in decode_deltas(payload)]


class Follower:
    """The reader of one API process. Run `run` as a task; `follow` streams from anywhere in the same loop."""

    def __init__(self, reader: Redis, api: str) -> None:
        """`reader` serves blocking reads; its socket timeout must exceed BLOCK_MS."""
        self._line = Line(reader)
        self._feeds: dict[str, Feed] = {}
        self._wake = keys.wake(api)
        self._wake_id = "0"
        self._wanted = asyncio.Event()

    @property
    def followed(self) -> int:
        """How many streams are followed now."""
        return len(self._feeds)

    @asynccontextmanager
    async def follow(self, name: str) -> AsyncIterator[Feed]:
        """Follow the stream with that key from its beginning; enter before whatever makes it is asked for."""
        feed = self._feeds[name] = Feed()
        self._wanted.set()
        try:
            yield feed
        finally:
            del self._feeds[name]

    async def run(self) -> None:
        """Read until cancelled. A broker that does not answer is tried again; nothing read is lost or repeated."""
        while not being_cancelled():
            if not self._feeds:
                self._wanted.clear()
                await self._wanted.wait()
                await asyncio.sleep(GIVES_WAY_S)
            asked_s = monotonic()
            try:
                came = await self._read()
                await _rest(asked_s + APART_S - monotonic(), came=came)
            except BrokerDown as error:
                log.warning("reader_waits", reason=error.message)
                await asyncio.sleep(RETRY_S)

    async def _read(self) -> bool:
        """Whether something came of a job; else the reader was woken, or has waited in vain. Raises BrokerDown."""
        # A torn stream would be given back at once, each time.
        wanted = {name: feed.last_id for name, feed in self._feeds.items() if not feed.torn}
        wanted[self._wake] = self._wake_id
        with broker_errors():
            answer = await self._line.ask([*READ, *wanted.keys(), *wanted.values()])
        came = False
        # A map, or in the older protocol, which an address may ask for, pairs.
        for raw_name, entries in answer.items() if isinstance(answer, dict) else answer or ():
            name = raw_name.decode()
            if name == self._wake:
                self._wake_id = entries[-1][0].decode()
            elif (feed := self._feeds.get(name)) is not None:
                await self._look_back(name, feed, entries[-1][0].decode())
                for entry_id, (_, payload) in entries:
                    feed.put(entry_id.decode(), payload)
                came = True
        return came

    async def _look_back(self, name: str, feed: Feed, newest_id: str) -> None:
        """A new attempt goes on from what stands in the stream: all that has come of it must stand there."""
        if feed.last_id == START or _attempt(newest_id) == _attempt(feed.last_id):
            return
        with broker_errors():
            if not await self._line.ask(["XRANGE", name, feed.last_id, feed.last_id]):
                feed.tear(_attempt(newest_id))


async def _rest(left_s: float, *, came: bool) -> None:
    """Between two reads, of which the second may begin in `left_s`; something `came` of the first."""
    if not came:
        await asyncio.sleep(max(left_s, GIVES_WAY_S))
    elif left_s > 0:
        await asyncio.sleep(left_s)
    else:
        for _ in range(TURNS):
            await asyncio.sleep(0)


def _attempt(entry_id: str) -> int:
    return int(entry_id.partition("-")[0])


def _follows(entry_id: str, last_id: str) -> bool:
    (attempt, number), (last_attempt, last_number) = (_parts(one) for one in (entry_id, last_id))
    if attempt == last_attempt:
        return number == last_number + 1
    return number <= 1


def _parts(entry_id: str) -> tuple[int, int]:
    attempt, _, number = entry_id.partition("-")
    return int(attempt), int(number or 0)
