"""What became of an answer's cache, worked out beside the answer.

Owns: when the last turn is read (while the job is on its way, so that the log line need not wait for it) and when this
one is kept (after its end), the bound on both, and what `/v1/why` shows of a request.
Never: delays an answer, or costs one: without the broker only the explanation is missing.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

import structlog

from api.ending import end
from api.protocol.request import Call
from infra.errors import BrokerDown
from scheduler.contract import Delta, Failed, Finished, Started, ThinkingDelta
from scheduler.dispatch import Dispatcher
from scheduler.policy import misses, sentences
from scheduler.policy.misses import Account, Seen, Turn
from scheduler.turns import Kept, Turns

log = structlog.get_logger(__name__)
T = TypeVar("T")
MOST_TASKS = 512
NAME_CHARACTERS = 80
QUEUED_MS = 50  # while a job waited for longer, another turn of its conversation may have ended


class Found(NamedTuple):
    """The turn to compare with, if there is one."""

    turn: Turn | None


class Explainer:
    """Explains answers. One per API process."""

    def __init__(self, turns: Turns, dispatcher: Dispatcher) -> None:
        self._turns = turns
        self._dispatcher = dispatcher
        self._tasks: set[asyncio.Task[Any]] = set()
        self._missed = False

    def follow(self, call: Call, request_id: str) -> "Explanation":
        """The explanation of one answer; it takes in the answer's deltas."""
        return Explanation(self, call, request_id)

    @property
    def now_ms(self) -> int:
        """The broker's clock, half a second late at most."""
        return self._dispatcher.view.now_ms

    def store_off(self, worker: str) -> str:
        info = self._dispatcher.worker(worker)
        return info.store.off if info else ""

    async def last(self, call: Call) -> Found | None:
        """None when the broker does not answer, which is said once."""
        try:
            last = await self._turns.last(call.identity.line, call.identity.conversation)
        except BrokerDown as error:
            self._miss(error)
            return None
        return Found(last)

    async def keep(self, kept: Kept) -> None:
        """Remember the turn and its account, if the broker answers."""
        try:
            await self._turns.keep(kept)
            self._missed = False
        except BrokerDown as error:
            self._miss(error)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T] | None:
        """Run `work` beside everything else; None when too much of it runs already."""
        if len(self._tasks) >= MOST_TASKS:
            work.close()
            return None
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settle(self, limit_s: float) -> None:
        """Let what runs come to its end, for `limit_s` at most; called when no new answer comes."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)
        await end(self._tasks)

    def _miss(self, error: BrokerDown) -> None:
        if not self._missed:
            log.warning("turns_not_explained", reason=error.message)
        self._missed = True


class Explanation:
    """The explanation of one answer. `account` is there once the last turn has been read and the answer has ended."""

    def __init__(self, explainer: Explainer, call: Call, request_id: str) -> None:
        self._explainer = explainer
        self._call = call
        self._request_id = request_id
        self._reading = self._read()
        self._started: Started | None = None
        self._begun_ms = 0
        self._content = False
        self._thought = False
        self._ended = False
        self.account: Account | None = None

    def feed(self, delta: Delta) -> None:
        """Take in the next delta of the answer."""
        if isinstance(delta, Started):
            self._started, self._begun_ms = delta, self._explainer.now_ms
            if delta.queue_ms > QUEUED_MS:
                self._reading = self._read()
        elif isinstance(delta, Finished):
            self._end(delta)
        elif not isinstance(delta, Failed):
            self._content = True
            self._thought = self._thought or isinstance(delta, ThinkingDelta)

    def leave(self) -> None:
        """The answer is over. One that was cut off in the middle has left its prompt in the cache."""
        if self._content:
            self._end(None)

    def _read(self) -> asyncio.Task[Found | None] | None:
        return self._explainer.start(self._explainer.last(self._call))

    def _end(self, finished: Finished | None) -> None:
        if self._reading is None or self._started is None or self._ended:
            return
        self._ended = True
        seen = self._seen(self._started, finished)
        if self._reading.done() and (found := self._reading.result()) is not None:
            self.account = misses.explain(found.turn, seen)
        self._explainer.start(self._keep(self._reading, seen))

    async def _keep(self, reading: asyncio.Task[Found | None], seen: Seen) -> None:
        found = await reading
        if found is None:
            return
        last = found.turn
        account = self.account = self.account or misses.explain(last, seen)
        who = self._call.identity
        await self._explainer.keep(
            Kept(
                line=who.line,
                agent=who.agent,
                turn=misses.turn(last, seen),
                slot=seen.started.slot,
                cause=account.cause,
                lost_tokens=account.lost_tokens,
                lost_ms=account.lost_ms,
                why=shown(who.agent, account, seen, last),
            )
        )

    def _seen(self, started: Started, finished: Finished | None) -> Seen:
        call = self._call
        counted = finished or started
        return Seen(
            request=self._request_id,
            conversation=call.identity.conversation,
            kind=call.identity.kind,
            chain=call.chain,
            summarised=call.summarised,
            model=call.request.model,
            asked_model=_printable(call.asked_model),
            started=started,
            prompt_tokens=counted.prompt_tokens,
            cached_tokens=counted.cached_tokens,
            output_tokens=finished.output_tokens if finished else 0,
            prefill_ms=finished.prefill_ms if finished else 0,
            thought=self._thought,
            begun_ms=self._begun_ms,
            ended_ms=self._explainer.now_ms,
            store_off=self._explainer.store_off(started.worker),
        )


def shown(agent: str, account: Account, seen: Seen, last: Turn | None) -> dict[str, Any]:
    """The account as `/v1/why` and `corral why` show it."""
    started = seen.started
    return {
        "request": seen.request,
        "agent": agent,
        "conversation": seen.conversation,
        "kind": seen.kind.value,
        "worker": started.worker,
        "slot": started.slot,
        "ended_ms": seen.ended_ms,
        "compared_with": last.request if last else None,
        "cause": account.cause.value,
        "where": account.where,
        "prompt_tokens": seen.prompt_tokens,
        "cached_tokens": seen.cached_tokens,
        "reuse_expected_tokens": account.expected_tokens,
        "lost_tokens": account.lost_tokens,
        "lost_ms": account.lost_ms,
        "source": started.source.value,
        "restored_tokens": started.restored_tokens,
        "restore_ms": started.restore_ms,
        "sentence": sentences.sentence(account, seen, last),
        "to_do": sentences.to_do(account),
    }


def _printable(name: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in name[:NAME_CHARACTERS])
