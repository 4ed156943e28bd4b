"""The job record and the line, from the API's side.

Owns: admitting, cancelling, moving, burying and forgetting a job; each is one atomic step in `lua/`.
Never: claims or runs a job (`claims`), decides where it goes (`policy`), publishes a ticket (`queue`).

    queued --claim--> running --append(final)--> done | failed
       |                 |
       +--cancel--> (gone)  +--cancel--> cancelled --append--> (gone)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from infra import keys
from infra.errors import NoWorker, QueueFull
from infra.redis_client import broker_errors
from scheduler import scripts
from scheduler.contract import Delta, JobSpec, Kind, encode_deltas
from scheduler.policy.bounded import Candidate

ENDED_LIFETIME_MS = 60_000
API_LIFETIME_MS = 60_000  # renewed each second; as long as a broker may be frozen without harm
NO_HOME_MS = 0  # a warm-up is nobody's conversation
HOMES_COUNT_MS = 300_000  # a conversation unused for five minutes no longer counts as load


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the line: jobs it may hold, and how long homes and waiting records live."""

    queue: int
    home_ms: int


@dataclass(frozen=True, slots=True)
class Admission:
    """Where a job was placed, and whether its prompt may use the window's reserve."""

    worker: str
    may_use_reserve: bool


class Jobs:
    """The store of records and lines. All methods raise BrokerDown when Redis does not answer."""

    def __init__(self, redis: Redis, api: str, limits: Limits) -> None:
        self._redis = redis
        self._api = api
        self._limits = limits
        self._admit = redis.register_script(scripts.text("admit"))
        self._cancel = redis.register_script(scripts.text("cancel"))
        self._move = redis.register_script(scripts.text("move"))
        self._bury = redis.register_script(scripts.text("bury"))

    @property
    def queue_limit(self) -> int:
        """How many jobs a line may hold."""
        return self._limits.queue

    async def home(self, conversation: str) -> str | None:
        """The worker that a conversation lives on, if it is remembered."""
        with broker_errors():
            found: Any = await self._redis.hget(keys.home(conversation), "worker")
        return str(found.decode()) if found else None

    async def admit(self, spec: JobSpec, candidates: Sequence[Candidate], retry_after_s: int) -> Admission:
        """Put the job into the line of the first candidate with room.

        Raises QueueFull (with `retry_after_s`) when every line is full, NoWorker when no candidate is alive.
        """
        with broker_errors():
            answer: Any = await self._admit(*self._admission(spec, candidates))
        index = int(answer[0])
        if index > 0:
            return Admission(candidates[index - 1].worker, may_use_reserve=bool(answer[1]))
        if index == 0:
            raise QueueFull("all workers are busy and their queues are full", retry_after_s=retry_after_s)
        raise NoWorker("no worker is alive; start one with `corral worker`", retry_after_s=retry_after_s)

    def _admission(self, spec: JobSpec, candidates: Sequence[Candidate]) -> tuple[list[str], list[str | int | bytes]]:
        who = spec.identity
        fields: list[str | int | bytes] = [
            "api", self._api, "agent", who.agent,
            "conversation", who.conversation, "kind", who.kind.value, "model", spec.request.model,
            "body", spec.request.body,
        ]  # fmt: skip
        names = [keys.job(spec.id), keys.ARRIVALS, keys.wake(self._api), keys.home(who.conversation)]
        names.append(keys.overflow(who.key_name, who.session or spec.id))
        home_ms = NO_HOME_MS if who.kind is Kind.WARM else self._limits.home_ms
        arguments: list[str | int | bytes] = [
            spec.id, spec.level, spec.wait_limit_ms, spec.wait_limit_ms + ENDED_LIFETIME_MS, self._limits.queue,
            home_ms, who.conversation, keys.LEVEL_WEIGHT, HOMES_COUNT_MS, len(fields) // 2, API_LIFETIME_MS, *fields,
        ]  # fmt: skip
        for candidate in candidates:
            names += [f(candidate.worker) for f in (keys.line, keys.running, keys.lease, keys.homes)]
            arguments += [candidate.worker, candidate.limit, candidate.slots]
        return names, arguments

    async def announce(self) -> None:
        """Say that this API process lives; the jobs of one that is silent for API_LIFETIME_MS are given up."""
        name = keys.wake(self._api)
        with broker_errors():
            if not await self._redis.pexpire(name, API_LIFETIME_MS):
                await self._redis.xadd(name, {"job": ""})
                await self._redis.pexpire(name, API_LIFETIME_MS)

    async def cancel(self, job_id: str, worker: str, level: int, *, only_queued: bool = False) -> str:
        """Give the job up; returns `queued` (gone), `running` (told to stop unless `only_queued`) or `over`."""
        for _ in range(4):  # a job may move between asking and answering; four moves in a row do not happen
            with broker_errors():
                names = [keys.job(job_id), keys.stream(job_id), keys.line(worker), keys.control(worker)]
                names.append(keys.level_list(worker, level))
                answer: Any = await self._cancel(names, [job_id, worker, "1" if only_queued else "0"])
            state = str(answer[0].decode())
            if state != "moved":
                return state
            worker = answer[1].decode()
        return "over"

    async def move(self, job_id: str, old: str, new: str, level: int, conversation: str) -> bool:
        """Move a queued job to another line; False when it was no longer queued there or the other line is full."""
        names = [keys.job(job_id), keys.line(old), keys.line(new), keys.level_list(old, level)]
        names += [keys.home(conversation), keys.homes(old), keys.homes(new)]
        with broker_errors():
            arguments: list[str | int] = [job_id, old, new, conversation, self._limits.home_ms, self._limits.queue]
            return bool(await self._move(names, arguments))

    async def bury(self, job_id: str, worker: str, incarnation: str, last: Delta) -> bool:
        """End the running job of a dead incarnation with `last`; False when it had ended, runs elsewhere, or the
        incarnation lives after all."""
        names = [keys.job(job_id), keys.stream(job_id), keys.running(worker), keys.lease(worker)]
        with broker_errors():
            return bool(await self._bury(names, [job_id, incarnation, encode_deltas([last]), ENDED_LIFETIME_MS]))

    async def forget(self, job_id: str) -> None:
        """Remove a job that has ended and whose client has been served."""
        with broker_errors():
            await self._redis.delete(keys.job(job_id), keys.stream(job_id))

    async def worker_of(self, job_id: str) -> str | None:
        """The worker in whose line the job waits, or that runs it; None when there is no record any more."""
        with broker_errors():
            found: Any = await self._redis.hget(keys.job(job_id), "worker")
        return str(found.decode()) if found else None

    async def met_window(self, key_name: str, session: str) -> None:
        """Remember for ten minutes that this session was told its prompt is too long; a compaction may come twice."""
        with broker_errors():
            await self._redis.set(keys.overflow(key_name, session), 1, ex=600)
