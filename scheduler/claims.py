"""Claiming jobs and holding them, from the worker's side.

Owns: taking the best job of this worker's line, the lease that keeps worker and jobs alive, and cancellations.
Never: an engine, a slot, a delta.
"""

import uuid
from collections.abc import Sequence
from time import monotonic
from typing import Any

import structlog
from redis import Redis

from infra import keys
from infra.redis_client import BLOCK_MS, broker_errors
from scheduler import scripts
from scheduler.contract import ClaimedJob, Kind, WorkerInfo

log = structlog.get_logger(__name__)
RUNNING_LIFETIME_MS = 120_000  # renewed with each beat; long enough to outlive a frozen broker
SIBLINGS_LOOKED_AT = 64
UNHELD_S = 10.0  # longer than a command with its retry takes
RETURNED_LIFETIME_MS = 60_000  # after its wait limit, as a job that was never claimed


class Claims:
    """This worker's hold on its line. All methods raise BrokerDown when Redis does not answer."""

    def __init__(self, redis: Redis, reader: Redis, worker: str, incarnation: str) -> None:
        """`reader` serves blocking reads; its socket timeout must exceed BLOCK_MS."""
        self._redis = redis
        self._reader = reader
        self._worker = worker
        self._incarnation = incarnation
        self._claim = redis.register_script(scripts.text("claim"))
        self._beat = redis.register_script(scripts.text("beat"))
        self._unclaim = redis.register_script(scripts.text("unclaim"))
        self._leave = redis.register_script(scripts.text("leave"))
        self._seen = "$"
        self._unheld: dict[str, float] = {}

    def claim(self) -> ClaimedJob | None:
        """The best job of the line, now running here; None when the line is empty.

        redis-py may send the command twice, and both copies may be carried out: the token makes them one claim.
        """
        names = [keys.line(self._worker), keys.running(self._worker)]
        arguments: list[str | int] = [
            self._worker,
            self._incarnation,
            keys.LEVEL_WEIGHT,
            RUNNING_LIFETIME_MS,
            keys.job(""),
        ]
        with broker_errors():
            found: Any = self._claim(names, [*arguments, SIBLINGS_LOOKED_AT, keys.wake(""), uuid.uuid4().hex])
        if found is None:
            return None
        job_id, attempt, level, agent, conversation, kind, queue_ms, reserve, body = found
        return ClaimedJob(
            id=job_id.decode(),
            attempt=attempt,
            level=level,
            agent=agent.decode(),
            conversation=conversation.decode(),
            kind=Kind(kind.decode()),
            queue_ms=queue_ms,
            may_use_reserve=bool(reserve),
            body=body,
        )

    def beat(self, info: WorkerInfo, lifetime_ms: int, running: Sequence[str]) -> dict[str, str] | None:
        """Renew lease and running jobs. Returns job -> state of each, or None if another process has our name.

        A job claimed here that is not among `running` for UNHELD_S goes back into the line when nothing was written
        of it: the answer to its claim was lost on the way. One that was begun is left to `recovery`, which ends it.
        """
        names = [keys.lease(self._worker), keys.WORKERS, keys.running(self._worker)]
        for job_id in running:
            names += [keys.job(job_id), keys.stream(job_id)]
        arguments: list[str | int] = [
            self._worker,
            self._incarnation,
            info.model_dump_json(),
            lifetime_ms,
            RUNNING_LIFETIME_MS,
            keys.wake(""),
        ]
        with broker_errors():
            answer: Any = self._beat(names, arguments)
        if answer[0] == 0:
            return None
        self._return_unheld({job_id.decode() for job_id in answer[2]} - set(running))
        return dict(zip(running, (state.decode() for state in answer[1]), strict=True))

    def _return_unheld(self, unheld: set[str]) -> None:
        self._unheld = {job_id: self._unheld.get(job_id, monotonic()) for job_id in unheld}
        for job_id, since_s in self._unheld.items():
            if monotonic() - since_s < UNHELD_S:
                continue
            names = [keys.job(job_id), keys.stream(job_id), keys.line(self._worker), keys.running(self._worker)]
            with broker_errors():
                back = self._unclaim(names, [job_id, self._incarnation, keys.LEVEL_WEIGHT, RETURNED_LIFETIME_MS])
            log.warning("job_claimed_by_nobody", job=job_id, worker=self._worker, waits_again=bool(back))

    def leave(self) -> None:
        """Give the lease back, so that nobody waits for it to run out; another process's is left alone.

        The worker stays known: `recovery` looks after its line and forgets it when that is empty.
        """
        with broker_errors():
            self._leave([keys.lease(self._worker)], [self._incarnation])

    def cancellations(self) -> list[str]:
        """Jobs to stop, as they are cancelled; waits up to BLOCK_MS. From the first call on none is missed."""
        name = keys.control(self._worker)
        with broker_errors():
            if self._seen == "$":
                newest: Any = self._reader.xrevrange(name, count=1)
                self._seen = newest[0][0].decode() if newest else "0"
            answer: Any = self._reader.xread({name: self._seen}, block=BLOCK_MS, count=100)
        entries = answer[0][1] if answer else []
        if entries:
            self._seen = entries[-1][0].decode()
        return [fields[b"job"].decode() for _, fields in entries]
