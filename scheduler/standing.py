"""Reads the jobs that stand in workers' lines, as placement sees them when they are to be placed anew.

Owns: what a record tells of a job that may have to move, and what is left of the answers that run.
Never: moves a job, decides.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from infra import keys
from infra.redis_client import broker_errors
from scheduler.contract import Kind
from scheduler.policy.claiming import MOST_URGENT_LEVEL, agent_name
from scheduler.policy.lengths import UNKNOWN, Length
from scheduler.policy.load import kept_slots, left_ms
from scheduler.policy.placement import Home, Known
from scheduler.policy.rebalancing import Queued

FIELDS = (
    "conversation", "agent", "model", "kind", "key", "prompt_tokens", "length_mu", "length_sigma", "expected_ms",
    "arrival_ms", "moved", "attempt",
)  # fmt: skip
RUNNING_FIELDS = ("expected_ms", "new_tokens", "claimed_ms")
HOME_FIELDS = ("worker", "tokens", "used_ms")


@dataclass(frozen=True, slots=True)
class Standing:
    """A job in a line. `queued` is None when its record ran out and only the books still name it; `attempts` at it
    were lost."""

    id: str
    level: int
    agent: str = ""
    model: str = ""
    kind: Kind = Kind.MAIN
    attempts: int = 0
    queued: Queued | None = None


class Lines:
    """Reads lines. All methods raise BrokerDown when Redis does not answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def line(self, worker: str, count: int | None = None) -> tuple[Standing, ...]:
        """The first `count` jobs (None: all) of a worker's line, by level and arrival; three round trips."""
        last = -1 if count is None else count - 1
        with broker_errors():
            found: Any = await self._redis.zrange(keys.line(worker), 0, last, withscores=True)
            placed = [(raw_id.decode(), int(score // keys.LEVEL_WEIGHT)) for raw_id, score in found]
            records = await self._fields([keys.job(job_id) for job_id, _ in placed], FIELDS)
            homes = await self._fields([keys.home((record[0] or b"").decode()) for record in records], HOME_FIELDS)
        rows = zip(placed, records, homes, strict=True)
        return tuple(_standing(job_id, level, record, home) for (job_id, level), record, home in rows)

    async def running(self, worker: str, token_ms: float, now_ms: int) -> tuple[float, ...]:
        """What each answer that runs there still takes, in ms; `token_ms` is the prefill of a token."""
        with broker_errors():
            jobs: Any = await self._redis.hkeys(keys.running(worker))
            records = await self._fields([keys.job(raw_id.decode()) for raw_id in jobs], RUNNING_FIELDS)
        return tuple(
            left_ms(float(expected or 0), int(tokens or 0), now_ms - int(claimed or now_ms), token_ms)
            for expected, tokens, claimed in records
        )

    async def kept(self, worker: str, slots: int, share: float) -> int:
        """How many of its slots are kept for the urgent levels, whose share is `share`, and not at work for them."""
        with broker_errors():
            if not await self._redis.exists(keys.urgent(worker)):
                return 0
            jobs: Any = await self._redis.hkeys(keys.running(worker))
            levels = await self._fields([keys.job(raw_id.decode()) for raw_id in jobs], ("level",))
        return kept_slots(share, slots, sum(int(level or 0) <= MOST_URGENT_LEVEL for [level] in levels))

    async def _fields(self, names: Sequence[str], fields: Iterable[str]) -> list[list[bytes | None]]:
        pipeline = self._redis.pipeline(transaction=False)
        for name in names:
            pipeline.hmget(name, *fields)
        return await pipeline.execute() if names else []


def _standing(job_id: str, level: int, record: Sequence[bytes | None], home: Sequence[bytes | None]) -> Standing:
    conversation, agent, model, kind, key, tokens, mu, sigma, expected_ms, arrival_ms, moved, attempts = map(
        _text, record
    )
    if record[0] is None:
        return Standing(job_id, level)
    known = Known(
        conversation=conversation,
        agent=agent_name(key, agent),
        level=level,
        prompt_tokens=int(tokens or 0),
        length=Length(float(mu), float(sigma)) if mu and sigma else UNKNOWN,
        home=_home(home),
    )
    queued = Queued(
        id=job_id, known=known, expected_ms=float(expected_ms or 0), arrival_ms=int(arrival_ms or 0),
        may_move=not moved and kind != Kind.WARM,
    )  # fmt: skip
    return Standing(job_id, level, agent, model, Kind(kind or Kind.MAIN), int(attempts or 0), queued)


def _home(fields: Sequence[bytes | None]) -> Home | None:
    worker, tokens, used_ms = map(_text, fields)
    return Home(worker, int(tokens or 0), int(used_ms or 0)) if worker else None


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode()
