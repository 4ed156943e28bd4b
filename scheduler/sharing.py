"""Identical requests that overlap are answered once: one job, and everybody who waits for its answer.

Owns: which requests are the same, who holds which job, and when a job that nobody wants any more is given up. A request
that is shared with nobody goes the same way: a share with one holder.
Never: places or queues a job (`dispatch`), keeps an answer that has been read to its end.

Inside one API process, in memory (infra/decisions/0016). Two keys never share.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from hashlib import sha256
from time import monotonic
from typing import Any

import orjson
import structlog

from infra.errors import BrokerDown, Refused
from infra.observability import metrics
from scheduler.contract import JobSpec
from scheduler.dispatch import Dispatcher
from scheduler.gathering import Gathering
from scheduler.raising import Raising
from scheduler.share import Held, Share

log = structlog.get_logger(__name__)


class Sharing:
    """The shares of one API process. `coalesced` counts the requests that joined another's job."""

    def __init__(
        self, dispatcher: Dispatcher, raising: Raising, gathering: Gathering, *, coalesce: bool, linger_s: float
    ) -> None:
        """Without `coalesce` no request joins another's, and none goes on when its client has hung up."""
        self._dispatcher = dispatcher
        self._raising = raising
        self._gathering = gathering
        self._coalesce = coalesce
        self._linger_s = linger_s if coalesce else 0.0
        self._known: dict[bytes, Share] = {}
        self._left: set[Share] = set()  # those that somebody left who may come back
        self._tasks: set[asyncio.Task[None]] = set()
        self.coalesced = 0

    @asynccontextmanager
    async def submit(self, spec: JobSpec) -> AsyncIterator[Held]:
        """Hold the job that answers `spec`: the one that an identical request began, else its own.

        Raises as `Dispatcher.submit`.
        """
        held = self._hold(spec)
        try:
            while not await _is_placed(held, spec):
                await self._leave(held)
                held = self._hold(spec)
            if held.shared:
                await held.share.lift(spec)
            yield held
        finally:
            await self._leave(held)

    async def settle(self, limit_s: float) -> None:
        """Wait until every job has been given back, for `limit_s` at most, and for nobody who may come back; called
        when no new request comes."""
        self._linger_s = 0.0
        for share in [share for share in self._left if not share.audience.read]:
            self._drop(share)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)
        await self._dispatcher.settle(limit_s)

    def _hold(self, spec: JobSpec) -> Held:
        key = _key(spec) if self._coalesce else None
        share = self._known.get(key) if key else None
        if share is None or not share.may_be_joined_by(spec):
            self._went_on(spec)
            return Held(spec, self._begin(spec, key), shared=False)
        self.coalesced += 1
        metrics.COALESCED.inc()
        log.info("request_joined", job=share.spec.id, agent=spec.identity.agent)
        held = Held(spec, share, shared=True)
        self._went_on(spec)
        return held

    def _begin(self, spec: JobSpec, key: bytes | None) -> Share:
        share = Share(spec, key, self._raising)
        share.task = self._start(share.run(self._dispatcher, self._gathering))
        if key is not None:
            self._known[key] = share
        return share

    async def _leave(self, held: Held) -> None:
        share, who = held.share, held.spec.identity
        share.audience.leave(held.reader)
        if self._linger_s and who.identified and held.may_return and held.last is None and share.joinable:
            share.audience.expect(who.conversation, monotonic() + self._linger_s)
            self._left.add(share)
        if held.met_its_window or not share.audience.read:
            # In a task of its own: whoever leaves may be cancelled once more.
            await asyncio.wait([self._start(self._give_back(held))])

    async def _give_back(self, held: Held) -> None:
        try:
            if held.shared and held.met_its_window:
                await held.met_window()
            if not held.share.audience.read:
                await self._unread(held.share)
            if held.share.over:
                await held.share.ended()  # it notes the window for the client that began it
        except BrokerDown as error:
            log.warning("share_not_given_back", job=held.spec.id, reason=error.message)

    async def _unread(self, share: Share) -> None:
        """Nobody reads this answer now. For one that was not begun nobody is waited for: its job leaves the line."""
        if share.audience.held_until_s > monotonic() and (share.audience.begun or not await self._withdrawn(share)):
            self._look_again(share)
        elif not share.audience.read:
            self._drop(share)
            await share.ended()

    async def _withdrawn(self, share: Share) -> bool:
        try:
            return await share.withdraw()
        except BrokerDown:
            return True  # nobody can join it any more

    def _look_again(self, share: Share) -> None:
        left_s = share.audience.held_until_s - monotonic()
        if left_s <= 0:
            self._drop(share)
        elif not share.audience.read:
            asyncio.get_running_loop().call_later(left_s, self._look_again, share)

    def _went_on(self, spec: JobSpec) -> None:
        """Whoever asks again, or asks something else, comes back for no other answer."""
        for share in tuple(self._left):
            share.audience.expect_no_more(spec.identity.conversation)
            if share.audience.held_until_s < monotonic():
                self._drop(share)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _drop(self, share: Share) -> None:
        self._left.discard(share)
        if share.key is not None and self._known.get(share.key) is share:
            del self._known[share.key]
        share.stop()


async def _is_placed(held: Held, spec: JobSpec) -> bool:
    """True when the job has been placed; False when it was refused for another's sake who may not wait for as long.

    Raises what kept it from that.
    """
    try:
        await held.known()
    except Refused:
        if held.shared and spec.wait_limit_ms > held.share.spec.wait_limit_ms:
            return False
        raise
    return True


def _key(spec: JobSpec) -> bytes | None:
    """What two requests have in common that may share one answer; None where none may.

    With temperature 0 whoever asks gets the same answer. Else only a conversation that left it and asks the same thing
    again shares: its client gave up waiting and retries. A key's requests are its own: for privacy and its accounts.
    """
    who = spec.identity
    if spec.request.greedy:
        asker = [who.key_name]
    elif who.identified:
        asker = [who.key_name, who.agent, who.conversation]
    else:
        return None
    return sha256(spec.request.digest + orjson.dumps(asker)).digest()
