"""The middle of the line: view -> admit -> place -> reserve -> enqueue -> follow.

Owns: the life of one job as its API process sees it. Entering `submit` puts the job into a line, leaving it gives
everything back: a job that has not ended is cancelled, one that has is forgotten.
Never: HTTP, an engine, how deltas look to a client.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import structlog

from infra import keys
from infra.errors import BrokerDown, NoWorker, PromptTooLong
from infra.observability import metrics, stages
from scheduler.admitting import Admission, HomeMoved
from scheduler.contract import ClusterView, Failed, Finished, JobSpec, Kind, WorkerInfo
from scheduler.follow import Feed, Follower
from scheduler.forecast import Arrival, Forecast
from scheduler.jobs import Jobs
from scheduler.membership import Membership
from scheduler.placed import Placed
from scheduler.placing import AT_ONCE, LIMIT_S, in_time
from scheduler.policy import admission, placement
from scheduler.policy.fleet import Fleets
from scheduler.queue import Tickets
from scheduler.resubmitting import Resubmitting

log = structlog.get_logger(__name__)
USUAL_ANSWER_S = 10.0
SMOOTHING = 0.2
REFUSING_LIMIT_S = 0.4  # what is left of a refused job after that is given back behind its client's back
GIVE_BACK_S = 2.0
GIVE_BACK_ATTEMPTS = 60


@dataclass(frozen=True, slots=True)
class _Entry:
    """A request that is let in: what is known of it, and where it may go."""

    known: placement.Known
    candidates: tuple[placement.Candidate, ...]
    arrival: Arrival
    retry_after_s: int


class Dispatcher:
    """Brings jobs to workers. One per API process."""

    def __init__(
        self,
        membership: Membership,
        jobs: Jobs,
        tickets: Tickets,
        follower: Follower,
        load_bound: float,
        forecast: Forecast,
    ) -> None:
        self._membership = membership
        self._jobs = jobs
        self._tickets = tickets
        self._follower = follower
        self._load_bound = load_bound
        self.forecast = forecast
        self._fleets = Fleets()
        self._placing = asyncio.Semaphore(AT_ONCE)
        self._held: set[Placed] = set()
        self._none_held = asyncio.Event()
        self._none_held.set()
        self._returning: set[asyncio.Task[None]] = set()
        self.usual_answer_s = USUAL_ANSWER_S

    @property
    def view(self) -> ClusterView:
        return self._membership.view

    @asynccontextmanager
    async def submit(self, spec: JobSpec, only: str | None = None) -> AsyncIterator[Placed]:
        """Place and enqueue `spec`, with the worker `only` if one is named; inside the block its deltas can be read.

        Raises NoWorker, QueueFull, WaitedTooLong (all with a retry hint) and BrokerDown.
        """
        with ExitStack() as turn:
            until_s = await self._turn(turn)
            async with in_time(until_s):
                entry = await self._enter(spec, only)
            async with self._follower.follow(keys.stream(spec.id)) as feed:
                stages.mark("placed")
                placed = self._hold(self._placed(spec, entry.candidates[0].worker, feed))
                refused = True
                try:
                    # Inside: an admission that fails or is cancelled may have taken place all the same.
                    async with in_time(until_s):
                        entry, admitted = await self._admitted(spec, entry, only)
                        placed.worker, placed.may_use_reserve = admitted.worker, admitted.may_use_reserve
                        reason = placement.why(entry.candidates, admitted.worker)
                        metrics.PLACEMENTS.labels(admitted.worker, reason).inc()
                        placed.eta_ms = await self.forecast.took(
                            entry.arrival, entry.known.length, admitted.worker, waits=admitted.waits
                        )
                        stages.mark("admitted")
                    turn.close()
                    refused = False
                    yield placed
                finally:
                    await self._end(placed, REFUSING_LIMIT_S if refused else None)

    async def _turn(self, held: ExitStack) -> float:
        """Wait for a turn at being placed, which `held` gives back; until when that may take, by the loop's clock."""
        self._check_broker()
        await self._placing.acquire()
        held.callback(self._placing.release)
        self._check_broker()  # it may have gone meanwhile, and each turn would last until its limit
        return asyncio.get_running_loop().time() + LIMIT_S

    def _check_broker(self) -> None:
        if not self._membership.fresh:
            raise BrokerDown("the broker does not answer", retry_after_s=5)

    async def _enter(self, spec: JobSpec, only: str | None, *, again: bool = False) -> "_Entry":
        known, candidates = await self._candidates(spec, only, fresh=again)
        if not candidates:  # since the last look somebody may have become ready, as another process knows already
            await self._membership.look_again()
            known, candidates = await self._candidates(spec, only, fresh=again)
        view = admission.serving(self.view, spec.request.model)
        retry_after_s = admission.retry_after_s(view, self.usual_answer_s)
        if not candidates:
            raise NoWorker(admission.why_none(view), retry_after_s=retry_after_s)
        if again:  # it was let in, and the promise that it may have held is used up
            arrival = self.forecast.arrived(spec, view, candidates)
        else:
            arrival = await self.forecast.let_in(spec, view, candidates, self.usual_answer_s)
        return _Entry(known, candidates, arrival, retry_after_s)

    async def _admitted(self, spec: JobSpec, entry: "_Entry", only: str | None) -> tuple["_Entry", Admission]:
        """What it was admitted as, and to which worker."""
        admit = partial(self._jobs.admit, ticket=self._tickets.written(spec.id, spec.identity.agent, spec.level))
        try:
            return entry, await admit(spec, entry.candidates, entry.retry_after_s, entry.known)
        except HomeMoved:  # another process had its turn, or the cluster moved it
            entry = await self._enter(spec, only, again=True)
            return entry, await admit(spec, entry.candidates, entry.retry_after_s, entry.known)

    def _placed(self, spec: JobSpec, worker: str, feed: Feed) -> Placed:
        again = Resubmitting(feed, self._jobs, self._tickets, partial(self._candidates, fresh=True))
        return Placed(spec, worker, feed, self._jobs, self.forecast.accuracy, again)

    async def _candidates(
        self, spec: JobSpec, only: str | None = None, *, fresh: bool = False
    ) -> tuple[placement.Known, tuple[placement.Candidate, ...]]:
        known = await self._jobs.known(spec, fresh=fresh)
        fleet = self._fleets.of(self.view, spec.request.model)
        if only is not None:
            return known, placement.only(fleet, known, only)
        return known, placement.candidates(fleet, known, self._load_bound)

    def worker(self, name: str) -> WorkerInfo | None:
        """What is known of a worker."""
        return next((worker.info for worker in self.view.workers if worker.info.name == name), None)

    def retry_after_s(self) -> int:
        """When a place is likely free, for one of whom nothing is known."""
        return admission.retry_after_s(self.view, self.usual_answer_s)

    async def again_s(self, spec: JobSpec) -> int:
        """When one that has waited in vain should ask again; it finds room then."""
        view = admission.serving(self.view, spec.request.model)
        again_s = await self.forecast.again_s(spec, view, self.usual_answer_s)
        return admission.retry_after_s(view, self.usual_answer_s) if again_s is None else again_s

    async def settle(self, limit_s: float) -> None:
        """Wait until every job has been given back, for `limit_s` at most; called when no new one comes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._none_held.wait()

    def _hold(self, placed: Placed) -> Placed:
        self._held.add(placed)
        self._none_held.clear()
        return placed

    def _release(self, placed: Placed) -> None:
        self._held.discard(placed)
        if not self._held:
            self._none_held.set()

    async def _end(self, placed: Placed, limit_s: float | None) -> None:
        self.forecast.ended(placed.spec.id)
        try:
            async with in_time(limit_s and asyncio.get_running_loop().time() + limit_s):
                if placed.last is None:
                    await self._jobs.cancel(placed.spec.id, placed.worker, placed.spec.level)
                else:
                    await self._learn(placed, placed.last)
                    await self._jobs.forget(placed.spec.id)
            self._release(placed)
        except (BrokerDown, asyncio.CancelledError) as error:
            log.warning("job_given_back_later", job=placed.spec.id, reason=str(error))
            task = asyncio.create_task(self._give_back(placed))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _give_back(self, placed: Placed) -> None:
        """Once the broker answers again: a worker would still answer a job that nobody waits for."""
        try:
            for _ in range(GIVE_BACK_ATTEMPTS):
                with contextlib.suppress(BrokerDown):
                    await self._jobs.cancel(placed.spec.id, placed.worker, placed.spec.level)
                    return
                await asyncio.sleep(GIVE_BACK_S)
        finally:
            self._release(placed)

    async def _learn(self, placed: Placed, last: Finished | Failed) -> None:
        if isinstance(last, Failed):
            if last.code == PromptTooLong.code:
                await placed.met_window()
        elif placed.spec.identity.kind is not Kind.WARM:  # a base's prefill says nothing of usual answers
            took_s = (last.prefill_ms + last.decode_ms) / 1000
            self.usual_answer_s += SMOOTHING * (took_s - self.usual_answer_s)
