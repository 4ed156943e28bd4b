"""Warm-up: each worker that comes up prefills the bases that the settings name, before anybody asks.

Owns: which base is asked of which worker when, one at a time, and how often a failure is tried again.
Never: takes a conversation's slot (the worker refuses that) or goes before a request: its jobs have the last level.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic

import structlog

from api.closing import Closing
from api.errors import error_of
from api.protocol.base import LEVEL, NOBODY, Base
from infra.errors import BrokerDown, CorralError, Refused, WorkerLost
from infra.redis_client import being_cancelled
from scheduler.contract import Failed, Finished, Identity, JobSpec, Kind, WorkerInfo, WorkerState
from scheduler.dispatch import Dispatcher
from scheduler.warmups import Warmups

log = structlog.get_logger(__name__)
PERIOD_S = 0.5
PAUSE_S = 3.0  # until what could not be done is tried again
TICK_S = 1.0
TRIES = 4  # the first one and three more
WAIT_LIMIT_MS = 3_600_000  # behind everybody else it may wait long


class Warming:
    """The warm-ups of one API process; other processes share the work."""

    def __init__(self, bases: Sequence[Base], dispatcher: Dispatcher, warmups: Warmups, closing: Closing) -> None:
        self._bases = bases
        self._dispatcher = dispatcher
        self._warmups = warmups
        self._closing = closing
        self._seen: set[str] = set()

    async def run(self) -> None:
        """Look after every engine that comes up, until cancelled or the house closes."""
        self._seen = set()
        async with asyncio.TaskGroup() as tasks:
            while self._bases and not self._closing.begun and not being_cancelled():
                for worker in self._new():
                    tasks.create_task(self._warm(worker))
                await asyncio.sleep(PERIOD_S)

    def _new(self) -> list[WorkerInfo]:
        """The workers whose engine was not seen before; what is gone is forgotten."""
        ready = {engine_of(worker): worker for worker in self._ready()}
        new = [worker for engine, worker in ready.items() if engine not in self._seen]
        self._seen = set(ready)
        return new

    async def _warm(self, worker: WorkerInfo) -> None:
        """Until this engine has every base, or the tries are used up, or it is gone."""
        while self._serves(worker):
            try:
                if _has_room(self._now(worker)):
                    async with self._holding(engine_of(worker)) as mine:
                        if mine and await self._round(worker):
                            return
            except BrokerDown as error:
                log.debug("warm_up_waits", worker=worker.name, reason=error.message)
            await asyncio.sleep(PAUSE_S)

    async def _round(self, worker: WorkerInfo) -> bool:
        """Ask for what is left, one base at a time; True when nothing is."""
        failures = await self._warmups.failures(engine_of(worker))
        # Where nothing is saved a base lives in a slot, and one more would only take another's place.
        held = self._bases[: len(worker.slots)] if worker.store.off else self._bases
        tries = [(base, failures.get(base.chain.base, 0)) for base in held]
        over = [failed is None or failed >= TRIES or await self._try(base, worker, failed) for base, failed in tries]
        return all(over)

    async def _try(self, base: Base, worker: WorkerInfo, failed: int) -> bool:
        """One base after `failed` failures; True when it need not be tried again."""
        engine = engine_of(worker)
        try:
            async with self._holding(_made(base, worker)) as mine:
                if not mine:
                    return False
                await self._ask(base, worker)
        except Refused:
            return False  # not now; it does not count
        except CorralError as error:
            if not failed:
                log.warning("warm_up_failed", worker=worker.name, base=base.name, reason=error.code)
            await self._warmups.failed(engine, base.chain.base, failed + 1)
            return failed + 1 >= TRIES
        await self._warmups.done(engine, base.chain.base)
        return True

    async def _ask(self, base: Base, worker: WorkerInfo) -> None:
        """Raises Refused when it cannot be done now, else what went wrong."""
        if not self._serves(worker):
            raise Refused("the worker has gone, or the house closes")
        began_s = monotonic()
        async with self._dispatcher.submit(_job(base, worker), only=worker.name) as placed:
            while placed.last is None:
                await self._warmups.renew(engine_of(worker), _made(base, worker))
                if not self._serves(worker):
                    raise Refused("the worker has gone, or the house closes")
                if not await placed.next(TICK_S) and await placed.vanished():
                    raise WorkerLost("its job was lost")
        if isinstance(placed.last, Failed):
            raise Refused(placed.last.message) if placed.last.code == Refused.code else error_of(placed.last)
        _tell(base, worker, placed.last, monotonic() - began_s)

    @asynccontextmanager
    async def _holding(self, what: str) -> AsyncIterator[bool]:
        mine = await self._warmups.take(what)
        try:
            yield mine
        finally:
            if mine:
                await self._warmups.give_back(what)

    def _ready(self) -> list[WorkerInfo]:
        infos = (worker.info for worker in self._dispatcher.view.workers)
        return [info for info in infos if info.state is WorkerState.READY]

    def _now(self, worker: WorkerInfo) -> WorkerInfo | None:
        """What is known now of this run of the worker's engine."""
        return next((info for info in self._ready() if engine_of(info) == engine_of(worker)), None)

    def _serves(self, worker: WorkerInfo) -> bool:
        return not self._closing.begun and not being_cancelled() and self._now(worker) is not None


def engine_of(worker: WorkerInfo) -> str:
    """Names one run of one engine: with it the caches in its slots begin and end."""
    return f"{worker.incarnation}:{worker.engine_pid}"


def _made(base: Base, worker: WorkerInfo) -> str:
    """Names what one worker at a time makes: the others find it in their store, and make another base meanwhile."""
    return f"{engine_of(worker) if worker.store.off else worker.model_hash}:{base.chain.base}"


def _has_room(worker: WorkerInfo | None) -> bool:
    """Whether a slot is nobody's."""
    return worker is not None and any(slot.conversation is None and not slot.busy for slot in worker.slots)


def _job(base: Base, worker: WorkerInfo) -> JobSpec:
    conversation = f"warm-{base.chain.base}"
    nobody = Identity(
        key_name=NOBODY, agent=NOBODY, session=None, conversation=conversation, kind=Kind.WARM, identified=True
    )
    request = base.request(worker.model)
    return JobSpec(id=os.urandom(16).hex(), identity=nobody, level=LEVEL, wait_limit_ms=WAIT_LIMIT_MS, request=request)


def _tell(base: Base, worker: WorkerInfo, last: Finished | None, took_s: float) -> None:
    if last is not None:
        log.info(
            "warmed",
            worker=worker.name,
            base=base.name,
            tokens=last.prompt_tokens,
            cached_tokens=last.cached_tokens,
            seconds=round(took_s, 1),
        )
