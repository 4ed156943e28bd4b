"""The wait of a request: told when it comes, refused at once where it is too long, shown while it lasts.

Owns: who is let in, the words of a refusal, the expected wait of each job let in, and how right that was.
Never: places a job (`policy.placement`), reckons a line (`policy.outlook`), keeps a promise (`promises`).

While the snapshot of the cluster shows a free slot nothing is asked of the broker: nobody waits then.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from infra.errors import BrokerDown, CorralError, QueueFull, WaitedTooLong
from infra.observability import metrics
from scheduler.contract import ClusterView, JobSpec, Kind, WorkerInfo, WorkerView
from scheduler.lines import Lines
from scheduler.policy.accuracy import Accuracy
from scheduler.policy.admission import able
from scheduler.policy.claiming import MOST_URGENT_LEVEL, Waiting
from scheduler.policy.lengths import Length
from scheduler.policy.load import kept_slots
from scheduler.policy.outlook import Outlook, Step
from scheduler.policy.placement import MOST_CANDIDATES, Candidate
from scheduler.promises import Promises, Room, Verdict

MOST_SHOWN = 20  # jobs of a line
SHOWN_WITHIN_S = 0.3  # what is shown waits no longer for the broker
NOT_YET_ARRIVED = 10**15  # beyond every arrival number
FORESEEN_MS = 3_600_000  # what is reckoned for later is a guess
NEVER_MS = 1e9  # the script knows no infinity


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request with its candidates and their workers."""

    spec: JobSpec
    candidates: tuple[Candidate, ...]
    workers: Mapping[str, WorkerView]


class Forecast:
    """The waits of one API process's requests."""

    def __init__(self, lines: Lines, promises: Promises) -> None:
        self._lines = lines
        self._promises = promises
        self._jobs: dict[str, str] = {}
        self._taken: Counter[str] = Counter()
        self._view_ms = 0
        self._numbers = count(NOT_YET_ARRIVED)
        self.accuracy = Accuracy()
        self.refused = {"wait": 0, "full": 0}
        self.kept = 0

    def arrived(self, spec: JobSpec, view: ClusterView, candidates: Sequence[Candidate]) -> Arrival:
        """A request with its candidates, asked whether it may come in or not."""
        workers = self._workers(view, [candidate.worker for candidate in candidates])
        return Arrival(spec, tuple(candidates), {worker.info.name: worker for worker in workers})

    async def let_in(
        self, spec: JobSpec, view: ClusterView, candidates: Sequence[Candidate], usual_s: float
    ) -> Arrival:
        """Let `spec` go on to its candidates. `usual_s` is what an answer takes while no record says it.

        Raises QueueFull or WaitedTooLong (both with a retry hint) when it would wait for longer than it may with each
        of them, or their lines have no room; not while a slot is free.
        """
        arrival = self.arrived(spec, view, candidates)
        workers = list(arrival.workers.values())
        promised = self._lines.promised(spec.request.model)
        if spec.identity.kind is Kind.WARM or (self._has_free(workers, spec.level) and not promised):
            return arrival
        outlooks = await self._outlooks(spec, [worker.info for worker in workers])
        if not outlooks:
            return arrival
        room = self._looked_at(spec, outlooks, usual_s)
        if self._lines.promised(spec.request.model) or not self._fits(spec, room, outlooks.values()):
            verdict = await self._ask(spec, room)
            if not verdict.comes_in:
                self.refused["full" if verdict.full else "wait"] += 1
                raise refusal(spec, verdict)
            self.kept += verdict.kept
            metrics.PROMISES_KEPT.inc(verdict.kept)
        return arrival

    async def again_s(self, spec: JobSpec, view: ClusterView, usual_s: float) -> int | None:
        """When to ask again, told to one that has waited in vain: it holds a promise from now on, if it needs one.

        None when nobody can say.
        """
        workers = [worker.info for worker in able(view)][:MOST_CANDIDATES]
        outlooks = await self._outlooks(spec, workers)
        if not outlooks:
            return None
        room = self._looked_at(spec, outlooks, usual_s)
        with suppress(BrokerDown):
            verdict = await self._ask(spec, room)
            return max(1, verdict.retry_after_s)
        return None

    async def took(self, arrival: Arrival, length: Length, worker: str, *, waits: bool) -> int | None:
        """The job, whose answer's length is expected to be `length`, was admitted to the line of `worker`.

        Its expected wait in ms, 0 when it does not wait, None when the broker does not say. Reckoned anew: of many that
        come at once each was let in before the others stood in the line.
        """
        spec, view = arrival.spec, arrival.workers.get(worker)
        if view is None:
            return None
        self._taken[worker] += 1
        self._jobs[spec.id] = worker
        wait_ms = await self._looked_up(spec, view.info) if waits else 0.0
        candidate = next(one for one in arrival.candidates if one.worker == worker)
        self._lines.add(view.info, self._waiting(spec, candidate.expected_ms), length, candidate.new_tokens)
        return None if wait_ms is None or wait_ms == math.inf else round(wait_ms)

    def ended(self, job_id: str) -> None:
        """The job has been answered or given up; told of all jobs, those that were never admitted too."""
        worker = self._jobs.pop(job_id, None)
        if worker is not None:
            self._taken[worker] -= 1
            self._lines.remove(worker, job_id)

    async def shown(self, view: ClusterView) -> dict[str, list[dict[str, Any]]]:
        """The first MOST_SHOWN jobs of each line in the order of claims, as /v1/status tells of them; as last seen when
        the broker does not answer at once."""
        infos = [worker.info for worker in view.workers]
        looking = asyncio.ensure_future(self._lines.look(infos))
        await asyncio.wait([looking], timeout=SHOWN_WITHIN_S)
        looking.add_done_callback(_silence)
        seen = {info.name: self._lines.of(info.name) for info in infos}
        return {name: _line(outlook) for name, outlook in seen.items() if outlook is not None}

    def figures(self, models: Sequence[str]) -> dict[str, Any]:
        """How right the expected waits of this process were, whom it refused and how many of these came in as promised;
        and of the cluster, as far as seen, how many of `models` hold a promise, and how many jobs were moved."""
        error = self.accuracy.error()
        return {
            "waits": error.waits,
            "median_error_s": round(error.median_ms / 1000, 2),
            "p90_error_s": round(error.p90_ms / 1000, 2),
            "ratio": error.ratio,
            "refused": dict(self.refused),
            "promises_kept": self.kept,
            "promises_open": sum(map(self._lines.promised, models)),
            "moved": self._lines.moved,
        }

    async def _ask(self, spec: JobSpec, room: Room) -> Verdict:
        verdict = await self._promises.ask(spec, room)
        if not verdict.comes_in:
            self._lines.promise(spec.request.model)
        return verdict

    def _looked_at(self, spec: JobSpec, outlooks: Mapping[str, Outlook], usual_s: float) -> Room:
        job, had = self._waiting(spec, 0.0), self._lines.had(spec.identity)
        wait_ms = min(outlook.start_ms(job, had) for outlook in outlooks.values())
        return _room(job, outlooks, wait_ms, usual_s)

    async def _outlooks(self, spec: JobSpec, workers: Sequence[WorkerInfo]) -> dict[str, Outlook]:
        """Empty when the broker does not answer: the admission will say so."""
        try:
            await self._lines.read(workers, spec.request.model, spec.identity)
        except BrokerDown:
            return {}
        found = {worker.name: self._lines.of(worker.name) for worker in workers}
        return {name: outlook for name, outlook in found.items() if outlook is not None}

    async def _looked_up(self, spec: JobSpec, worker: WorkerInfo) -> float | None:
        outlook = (await self._outlooks(spec, [worker])).get(worker.name)
        if outlook is None:
            return None
        own = next((step.start_ms for step in outlook.steps if step.job.id == spec.id), None)
        return own if own is not None else outlook.start_ms(self._waiting(spec, 0.0), self._lines.had(spec.identity))

    def _fits(self, spec: JobSpec, room: Room, outlooks: Collection[Outlook]) -> bool:
        """As the lines stood lately, so nobody is refused for this alone."""
        if any(outlook.free_for(spec.level) for outlook in outlooks):
            return True
        has_room = any(outlook.queued < self._promises.queue_limit for outlook in outlooks)
        return has_room and max(room.wait_ms, room.turns_ms) <= spec.wait_limit_ms

    def _workers(self, view: ClusterView, names: Collection[str]) -> list[WorkerView]:
        if view.now_ms != self._view_ms:
            self._view_ms = view.now_ms
            self._taken.clear()
        return [worker for worker in view.workers if worker.info.name in names]

    def _has_free(self, workers: Sequence[WorkerView], level: int) -> bool:
        """As the snapshot shows it, less what this process has sent there since, and more what has ended. What may be
        kept for more urgent levels is left out: a look at the line will tell."""

        def free(worker: WorkerView) -> int:
            slots = len(worker.info.slots)
            kept = kept_slots(self._lines.rules.urgent_share, slots, 0) if level > MOST_URGENT_LEVEL else 0
            return slots - kept - worker.running - sum(worker.queued) - self._taken[worker.info.name]

        return any(free(worker) > 0 for worker in workers)

    def _waiting(self, spec: JobSpec, expected_ms: float) -> Waiting:
        who = spec.identity
        return Waiting(
            id=spec.id,
            level=spec.level,
            key=who.key_name,
            agent=who.agent,
            kind=who.kind,
            arrival=next(self._numbers),
            arrival_ms=float(self._view_ms),
            expected_ms=expected_ms,
            agent_weight=spec.agent_weight,
            key_weight=spec.key_weight,
        )


def _room(asks: Waiting, outlooks: Mapping[str, Outlook], wait_ms: float, usual_s: float) -> Room:
    waiting = [job for outlook in outlooks.values() for job in outlook.line.waiting]
    running = [job for outlook in outlooks.values() for job in outlook.line.running]
    services = [job.expected_ms for job in waiting if job.expected_ms]
    mine = (asks.level, asks.key, asks.agent)
    others = {(job.key, job.agent) for job in waiting if job.level <= asks.level}
    others |= {(job.key, job.agent) for job in running if job.level <= asks.level}
    return Room(
        wait_ms=min(wait_ms, NEVER_MS),
        usual_ms=sum(services) / len(services) if services else usual_s * 1000,
        slots={name: outlook.slots_for(asks.level) for name, outlook in outlooks.items()},
        own=sum((job.level, job.key, job.agent) == mine for job in waiting),
        agents=len(others | {mine[1:]}),
    )


def refusal(spec: JobSpec, verdict: Verdict) -> CorralError:
    """What a request that does not come in is told, and when it may ask again."""
    retry_after_s = verdict.retry_after_s
    again = f"ask again in {retry_after_s} s"
    if verdict.full:
        words = f"all workers are busy and their queues are full, or promised to earlier callers; {again}"
        return QueueFull(words, retry_after_s=retry_after_s)
    when = (
        f"in about {verdict.wait_ms / 1000:.0f} s" if verdict.wait_ms <= FORESEEN_MS else "in an hour at the earliest"
    )
    words = f"a slot is expected {when}, and this request may wait for {spec.wait_limit_ms / 1000:g} s; {again}"
    kind = QueueFull if spec.identity.identified else WaitedTooLong
    return kind(words, retry_after_s=retry_after_s)


def _line(outlook: Outlook) -> list[dict[str, Any]]:
    return [_shown(place, step, outlook) for place, step in enumerate(outlook.steps[:MOST_SHOWN], 1)]


def _shown(place: int, step: Step, outlook: Outlook) -> dict[str, Any]:
    job = step.job
    return {
        "agent": job.agent,
        "level": job.level,
        "place": place,
        "waited_s": round(max(0.0, outlook.line.now_ms - job.arrival_ms) / 1000, 1),
        "expected_s": None if step.start_ms == math.inf else round(step.start_ms / 1000, 1),
    }


def _silence(task: asyncio.Future[None]) -> None:
    if not task.cancelled():
        task.exception()  # the broker's silence is told elsewhere
