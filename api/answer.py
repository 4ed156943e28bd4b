"""One answer: waiting for it, committing to it, and its events as they come.

Owns: the waiting limits, the early commit, pings and heartbeats, and what is known of an answer for headers and log.
Never: places or queues a job (`scheduler.dispatch`), knows the shape of an event (`protocol.events`).

Until `Started` everything that goes wrong is a status code. An identified agent that waits longer than the early
commit gets its stream opened first, once its prompt has been counted and fits; from then on trouble is an error event.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any

import structlog

from api.broker_patience import BrokerPatience
from api.deadlines import Deadlines
from api.errors import error_of, reply_for, within_bounds
from api.house import House
from api.protocol.events import EventBuilder, joined
from api.protocol.request import Call
from api.protocol.sse import encode
from api.protocol.whole import whole_message
from infra.errors import CorralError, DeadlinePassed, PromptTooLong, ShuttingDown, WaitedTooLong, WorkerLost
from infra.observability import metrics, stages
from scheduler.contract import Delta, Failed, Finished, Started
from scheduler.share import Held

log = structlog.get_logger(__name__)
TICK_S = 1.0  # how often a silent job is looked after
COUNT_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Patience:
    """The limits of one answer, in seconds from its arrival. `early_commit_s` is inf where it is not allowed."""

    wait_s: float
    early_commit_s: float
    answer_s: float


class Answer:
    """The answer to one call: `commit` and then `events`, or `whole`."""

    def __init__(self, call: Call, request_id: str, placed: Held, house: House) -> None:
        self._call = call
        self._request_id = request_id
        self._message_id = f"msg_{request_id.removeprefix('req_')}"
        self._placed = placed
        self._house = house
        self._patience = patience(call, house)
        self._broker = BrokerPatience()
        self._began_s = monotonic()
        self._deadlines = Deadlines(call.limits, self._patience.wait_s + self._patience.answer_s)
        self._may_withdraw = True
        self._come: list[Delta] = []
        self._counted_tokens = 0
        self.explanation = house.explainer.follow(call, request_id)
        self.job_id = placed.spec.id
        self.started: Started | None = None
        self.attempts = 0  # that have begun
        self.continued = False  # an attempt began when a part had been told
        self.first_s: float | None = None  # when the first token came, on the monotonic clock
        self.pieces = 0  # of the answer that have come; most are a token
        self.first_pieces = 0  # of these came at once with the first: whoever joins is told all that was there
        self.finished: Finished | None = None
        self.failure: CorralError | None = None

    @property
    def worker(self) -> str:
        """The worker that makes the answer, or in whose line it waits."""
        return self.started.worker if self.started else self._placed.worker

    @property
    def waits_again(self) -> bool:
        """Whether it has begun, and is waiting for another attempt."""
        return self.started is not None and self._placed.waits

    @property
    def eta_ms(self) -> int | None:
        """The wait that was expected when the request came, 0 for none; None when nobody could say."""
        return self._placed.eta_ms

    @property
    def shared(self) -> bool:
        """Whether this is the answer to an identical request of another client."""
        return self._placed.shared

    @property
    def joined(self) -> str:
        """The traceparent of the request whose answer this is, too; "" where it is this one's own."""
        return self._placed.began_by if self.shared else ""

    def counts(self, part: str) -> bool:
        """Whether this part of the work is in no figures yet: that of a shared answer belongs there once."""
        return self._placed.counts(part)

    async def commit(self) -> None:
        """Return when status 200 may go out. Raises what the client is told instead."""
        opens_s = self._began_s + self._patience.early_commit_s
        while not self._come:
            left_s = opens_s - monotonic()
            if left_s <= 0 and await self._broker.ask(self._fits()):
                return
            self._come = await self._next(min(left_s, TICK_S) if left_s > 0 else TICK_S)

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events, with signs of life while nothing comes. Always ends with a last event."""
        builder = EventBuilder(self._message_id, self._call.asked_model)
        if self.started is None:
            yield _encoded(builder.start(self._counted_tokens, 0))
        beat = Beat(self._house.settings.ping_interval_s, self._house.settings.heartbeat_interval_s)
        try:
            while not builder.done:
                events = [event for delta in joined(await self._more()) for event in builder.feed(delta)]
                if events:
                    beat.content()
                elif (sign := beat.due()) is not None:
                    events = [builder.ping() if sign == "ping" else builder.heartbeat()]
                if events:
                    yield _encoded(events)
        except CorralError as error:
            yield self._last(builder, error)
        except Exception:
            log.exception("unexpected_error", request_id=self._request_id)
            yield self._last(builder, CorralError("the gateway met an unexpected error; its log has the details"))

    async def whole(self) -> dict[str, Any]:
        """The complete message. Raises what ended it instead."""
        deltas: list[Delta] = []
        while self.finished is None:
            deltas += await self._next(TICK_S)
        return whole_message(self._message_id, self._call.asked_model, deltas)

    def headers(self) -> dict[str, str]:
        """What is known of the answer now."""
        known = {"x-corral-worker": self.worker}
        known |= {"x-corral-shared": "1"} if self.shared else {}
        known |= {"x-corral-eta-ms": str(self.eta_ms)} if self.eta_ms is not None else {}
        if self.started is None:
            return known
        counted = self.finished or self.started  # as the usage has it
        return {
            **known,
            "x-corral-slot": str(self.started.slot),
            "x-corral-attempt": str(self.started.attempt),
            "x-corral-queue-ms": str(self.started.queue_ms),
            "x-corral-prompt-tokens": str(counted.prompt_tokens),
            "x-corral-cached-tokens": str(counted.cached_tokens),
        }

    def _last(self, builder: EventBuilder, error: CorralError) -> bytes:
        self.failure = error
        kind = reply_for(error, self._request_id).body["error"]["type"]
        return _encoded(builder.fail(kind, error.message, self._request_id))

    async def _more(self) -> list[Delta]:
        come, self._come = self._come, []
        return come or await self._next(TICK_S)

    async def _next(self, timeout_s: float) -> list[Delta]:
        """What has come, [] when nothing did within `timeout_s`. Raises what ended the answer."""
        if self._house.closing.over:
            raise self._stopping()
        try:
            timeout_s = min(timeout_s, self._deadlines.left_s())
        except DeadlinePassed:
            self._placed.may_return = False  # nobody would come back for it in time
            raise
        deltas = await self._placed.next(timeout_s)
        for delta in deltas:
            if not self.shared:  # the cache was used, and filled, for the client that began the job
                self.explanation.feed(delta)
            if isinstance(delta, Started):
                self.started = delta
                self.attempts += 1
                self.continued = self.continued or self.first_s is not None
                self._deadlines.begun()
                self._house.counts.seen(self._call.request, delta.prompt_tokens)
                stages.mark("started")
            elif isinstance(delta, Finished):
                self.finished = delta
            elif isinstance(delta, Failed):
                self.failure = error_of(delta)
                raise self.failure
            else:
                self.first_s = self.first_s or monotonic()
                self.pieces += 1
                self._deadlines.told()
                stages.mark("content")
        self.first_pieces = self.first_pieces or self.pieces
        if not deltas:
            await self._broker.ask(self._look_after())
        return deltas

    async def _look_after(self) -> None:
        """A silent job: has its wait been too long, is the house closing, has the broker lost it?"""
        waited_s = monotonic() - self._began_s
        closing = self._house.closing.begun
        if self.started is None and self._may_withdraw and (closing or waited_s >= self._patience.wait_s):
            self._may_withdraw = await self._placed.withdraw()
            if self._may_withdraw:
                raise self._stopping() if closing else await self._in_vain()
        if await self._placed.vanished():
            self._placed.may_return = False  # or each retry would be given this beginning again, and never an end
            raise self._lost()
        if self.waits_again:
            self._deadlines.waits()

    def _lost(self) -> CorralError:
        """A record also runs out when an answer has waited in vain for another attempt."""
        begun = "the answer was lost half way, and nobody could go on with it; ask again"
        waiting = "the request was lost with the broker's data; ask again"
        return WorkerLost(begun if self.started else waiting, retry_after_s=1)

    def _stopping(self) -> CorralError:
        return ShuttingDown("the gateway is being stopped", retry_after_s=self._house.dispatcher.retry_after_s())

    async def _in_vain(self) -> CorralError:
        self._house.tally.in_vain += 1
        metrics.IN_VAIN.inc()
        retry_after_s = within_bounds(await self._house.dispatcher.again_s(self._placed.spec))
        words = f"no slot came free within {self._patience.wait_s:g} s; ask again in {retry_after_s} s"
        return WaitedTooLong(words, retry_after_s=retry_after_s)

    async def _fits(self) -> bool:
        """Asked before an early commit: a prompt that is too long must still be told by its status code.

        Raises PromptTooLong.
        """
        count = await self._house.counts.count(self._call.request, min(COUNT_LIMIT_S, self._deadlines.left_s()))
        self._counted_tokens = count.tokens
        await self._placed.vanished()  # it may have been moved to a worker with another window
        worker = self._house.dispatcher.worker(self._placed.worker)
        if worker is None or not count.exact:
            return True
        limit_tokens = worker.context_tokens if self._placed.may_use_reserve else worker.prompt_limit_tokens
        if count.tokens > limit_tokens:
            await self._placed.met_window()
            raise PromptTooLong(count.tokens, limit_tokens)
        return True


class Beat:
    """When a sign of life is due: a ping after `ping_s` of silence, a heartbeat each `heartbeat_s` without content.

    Pings alone do not keep the client: after 300 s without a meaningful event it drops the stream.
    """

    def __init__(self, ping_s: float, heartbeat_s: float) -> None:
        self._ping_s = ping_s
        self._heartbeat_s = heartbeat_s
        self._pinged_s = self._content_s = monotonic()

    def content(self) -> None:
        self._pinged_s = self._content_s = monotonic()

    def due(self) -> str | None:
        """`heartbeat`, `ping` or None; what it returns counts as sent."""
        now_s = monotonic()
        if now_s - self._content_s >= self._heartbeat_s:
            self._pinged_s = self._content_s = now_s
            return "heartbeat"
        if now_s - self._pinged_s >= self._ping_s:
            self._pinged_s = now_s
            return "ping"
        return None


def patience(call: Call, house: House) -> Patience:
    """The limits for this caller: an identified agent waits longer, and a stream of its may be opened early."""
    settings = house.settings
    identified = call.identity.identified
    return Patience(
        wait_s=settings.wait_identified_s if identified else settings.wait_anonymous_s,
        early_commit_s=settings.early_commit_s if identified and call.stream else inf,
        answer_s=settings.answer_timeout_s,
    )


def _encoded(events: list[dict[str, Any]]) -> bytes:
    return b"".join(encode(event) for event in events)
