"""Attempts that died with their worker, as their traces tell them.

Owns: the span of an attempt whose worker cannot tell it any more; it has the id that the worker would have given it.
Never: says that a worker is dead (`recovery`). Where nobody traces it asks the broker nothing.
"""

import time
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from infra import keys
from infra.observability.traces import Stage, Traces
from infra.redis_client import broker_errors
from scheduler.attempts import attempt_span

FIELDS = ("agent", "conversation", "kind", "key")  # of the record, by the same names in the log line


@dataclass(frozen=True, slots=True)
class Lost:
    """One attempt, as its job's record showed it before the job was taken from it."""

    traces: Traces
    job: str
    worker: str
    record: dict[str, str]

    def tell(self) -> None:
        """Its span, up to now."""
        record, ahead_s = self.record, time.monotonic() - time.time()
        if not (record.get("trace") and record.get("claim")):
            return
        now_s = time.monotonic()
        # The broker's clock may be ahead of this machine's.
        claimed_s = min(now_s, int(record["claimed_ms"]) / 1000 + ahead_s)
        waited_ms = int(record["claimed_ms"]) - int(record.get("queued_ms") or record["arrival_ms"])
        begun_s = claimed_s - waited_ms / 1000
        span = self.traces.go_on("attempt", record["trace"], attempt_span(record["claim"]), begun_s)
        fields: dict[str, Any] = {"job": self.job, "worker": self.worker, "outcome": "lost"}
        fields |= {name: record[name] for name in FIELDS if name in record}
        fields |= {name: int(record[name]) for name in ("attempt", "level")}
        span.end(fields, [Stage("queue", begun_s, claimed_s)], failed="worker_lost")


class LostAttempts:
    """What is told of attempts whose worker died."""

    def __init__(self, redis: Redis, traces: Traces) -> None:
        self._redis = redis
        self._traces = traces

    async def look(self, job_id: str, worker: str) -> Lost:
        """The attempt that runs this job, before it loses it. Raises BrokerDown."""
        record: dict[str, str] = {}
        if self._traces.on:
            names = ["trace", "claim", "claimed_ms", "arrival_ms", "queued_ms", "attempt", "level", *FIELDS]
            with broker_errors():
                values: Any = await self._redis.hmget(keys.job(job_id), *names)
            record = {name: value.decode() for name, value in zip(names, values, strict=True) if value is not None}
        return Lost(self._traces, job_id, worker, record)
