"""The store's two sides on one broker, as tests use them.

Owns: clients, and requests of a test's own shape. `Store` is what an API process and its workers share.
Never: a rule of the store.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from redis.asyncio import Redis

from infra import keys
from infra.redis_client import READ_TIMEOUT_S, async_client, sync_client
from scheduler.claims import Claims
from scheduler.contract import (
    LEVELS,
    Delta,
    GenerationRequest,
    Identity,
    JobSpec,
    Kind,
    Message,
    PackedRequest,
    SlotInfo,
    TextBlock,
    WorkerInfo,
    WorkerState,
    decode_deltas,
)
from scheduler.forecast import Forecast
from scheduler.jobs import Jobs, Limits
from scheduler.lines import Lines
from scheduler.packing import pack
from scheduler.policy.claiming import Rules
from scheduler.policy.placement import Candidate
from scheduler.promises import Promises
from scheduler.remembered import Remembered
from scheduler.stream import Append

API = "api-of-test"
LIFETIME_MS = 60_000
HOME_MS = 600_000
# What may stay without a time to live: counters and books that describe what is there now, and Celery's own.
LASTING = ("corral:arrivals", "corral:workers", "corral:line:", "corral:running:", "llm.", "_kombu")


def request(text: str = "hello", max_tokens: int = 16) -> GenerationRequest:
    return GenerationRequest(
        model="m", messages=(Message(role="user", content=(TextBlock(text=text),)),), max_tokens=max_tokens
    )


def packed(text: str = "hello") -> PackedRequest:
    return pack(request(text))


def spec(
    level: int = 5,
    *,
    agent: str = "agent",
    kind: Kind = Kind.MAIN,
    conversation: str = "",
    job_id: str = "",
    wait_limit_ms: int = 30_000,
    session: str | None = None,
) -> JobSpec:
    job_id = job_id or uuid4().hex
    identity = Identity(
        key_name="k",
        agent=agent,
        session=session,
        conversation=conversation or f"conversation-{job_id}",
        kind=kind,
        identified=True,
    )
    return JobSpec(id=job_id, identity=identity, level=level, wait_limit_ms=wait_limit_ms, request=packed())


def worker_info(name: str, incarnation: str, state: WorkerState = WorkerState.READY, slots: int = 2) -> WorkerInfo:
    infos = tuple(SlotInfo(slot=number) for number in range(slots))
    return WorkerInfo(name=name, incarnation=incarnation, state=state, model="m", slots=infos)


RULES = Rules()


@dataclass
class Worker:
    """A worker's side of the store: its claims and its pen."""

    name: str
    incarnation: str
    claims: Claims
    append: Append

    def beat(self, *running: str, lifetime_ms: int = LIFETIME_MS, state: WorkerState = WorkerState.READY) -> Any:
        return self.claims.beat(worker_info(self.name, self.incarnation, state), lifetime_ms, running)


class Store:
    """An API's `jobs` and workers made by name, with a raw client to look behind them."""

    def __init__(self, url: str, raw: Any, queue_limit: int = 64) -> None:
        self.url = url
        self.raw = raw
        self.redis: Redis = async_client(url)
        self.sync = sync_client(url)
        self.reader = sync_client(url, timeout_s=READ_TIMEOUT_S)
        self.jobs = self.jobs_with(queue_limit)

    async def close(self) -> None:
        await self.redis.aclose()
        self.sync.close()
        self.reader.close()

    def jobs_with(self, queue_limit: int, remembered: Remembered | None = None) -> Jobs:
        return Jobs(self.redis, API, Limits(queue=queue_limit, home_ms=HOME_MS), remembered)

    def worker(self, name: str = "w1", incarnation: str = "", *, alive: bool = True) -> Worker:
        incarnation = incarnation or f"{name}-{uuid4().hex[:6]}"
        worker = Worker(name, incarnation, Claims(self.sync, self.reader, name, incarnation), Append(self.sync, name))
        if alive:
            assert worker.beat() == {}
        return worker

    async def admit(self, job: JobSpec, *workers: str) -> str:
        """Place `job` and lay its ticket, as the dispatcher does."""
        worker = (await self.jobs.admit(job, candidates(*(workers or ("w1",))), 1)).worker
        self.ticket(worker, job.level)
        return worker

    def now_ms(self) -> int:
        """The broker's clock."""
        seconds, micros = self.raw.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def ticket(self, worker: str, level: int) -> None:
        self.raw.lpush(keys.level_list(worker, level), "ticket")

    def tickets(self, worker: str = "w1") -> list[int]:
        """How many tickets lie at each level."""
        pipeline = self.raw.pipeline(transaction=False)
        for level in LEVELS:
            pipeline.llen(keys.level_list(worker, level))
        return [int(count) for count in pipeline.execute()]

    def line(self, worker: str = "w1") -> list[str]:
        return list(self.raw.zrange(keys.line(worker), 0, -1))

    def running(self, worker: str = "w1") -> dict[str, str]:
        return dict(self.raw.hgetall(keys.running(worker)))

    def state(self, job_id: str) -> str | None:
        state: str | None = self.raw.hget(keys.job(job_id), "state")
        return state

    def home(self, conversation: str) -> str | None:
        """The worker that a conversation lives on."""
        worker: str | None = self.raw.hget(keys.home(conversation), "worker")
        return worker

    def written(self, job_id: str) -> list[tuple[str, list[Delta]]]:
        """The stream's entries: id and deltas."""
        entries: Any = self.raw.xrange(keys.stream(job_id))
        return [(entry_id, decode_deltas(fields["d"].encode())) for entry_id, fields in entries]

    def lasting(self) -> list[str]:
        """Keys that live for ever though they should not."""
        names: list[str] = list(self.raw.scan_iter(count=1000))
        return [name for name in names if not name.startswith(LASTING) and self.raw.ttl(name) < 0]


def candidates(*workers: str, expected_ms: float = 0) -> Sequence[Candidate]:
    return [Candidate(worker, 2, expected_ms=expected_ms) for worker in workers]


def to(worker: str) -> Candidate:
    """A worker that a job is moved to."""
    return Candidate(worker, 2)


def forecast_of(store: Store, queue_limit: int = 64, rules: Rules = RULES) -> Forecast:
    return Forecast(Lines(store.redis, rules), Promises(store.redis, queue_limit))


def sent_twice(script: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A step that redis-py sends again because its first answer was lost, though it was carried out."""

    async def send(names: Any, arguments: Any) -> Any:
        await script(names, arguments)
        return await script(names, arguments)

    return send


StoreMaker = Callable[..., Store]
