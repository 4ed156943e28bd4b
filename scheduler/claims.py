"""Claiming jobs and holding them, from the worker's side.

Owns: taking the best job of this worker's line, settling what its answer used, the lease that keeps worker and jobs
alive, and cancellations.
Never: an engine, a slot, a delta; the order of a line (`policy.claiming`, `lua/claim.lua`).
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import orjson
import structlog
from redis import Redis, RedisError

from infra import keys
from infra.redis_client import BLOCK_MS, broker_errors
from infra.redis_script import Argument
from infra.redis_step import Step
from scheduler import scripts
from scheduler.ahead import Ahead
from scheduler.attempts import attempt_span, requeue_arguments, requeue_keys
from scheduler.contract import ClaimedJob, Delta, Kind, WorkerInfo, decode_deltas
from scheduler.draining import DRAIN_MARK_MS
from scheduler.policy.claiming import MOST_URGENT_LEVEL, Cached, Rules, agent_name, pair_name
from scheduler.policy.eviction import LEARNT
from scheduler.policy.keeping import LONGEST_STEPS, WORTH
from scheduler.policy.lengths import MOST_SAMPLES

log = structlog.get_logger(__name__)
RUNNING_LIFETIME_MS = 120_000  # renewed with each beat; long enough to outlive a frozen broker
LONGEST_HOLD_MS = 5000  # a kept slot's worker looks again after so long, should the word of a new job be lost
REMEMBERED_MS = 3_600_000  # of what a line remembers at least; longer than any job waits
FADED_HALF_LIVES = 10  # after these nothing of a service is left that would matter
LENGTHS_MS = 7 * 86_400_000
SETTLED_MS = 60_000  # longer than a command with its retry takes
UNHELD_S = 10.0  # longer than a claim takes that was asked ahead and is asked again, with its retry
RETURNED_LIFETIME_MS = 60_000  # after its wait limit, as a job that was never claimed


DEFAULT_RULES = Rules()


class SlotKept(Exception):
    """Jobs wait but the free slot is kept for others, for `held_ms` at most; a new job is told on `cancellations`."""

    def __init__(self, held_ms: int) -> None:
        super().__init__(f"the slot is kept for {held_ms} ms")
        self.held_ms = held_ms


@dataclass(frozen=True, slots=True)
class Question:
    """A claim; the token makes one of it, however often it is put."""

    names: list[str]
    arguments: list[Argument]
    token: str


class Claims:
    """This worker's hold on its line. All methods raise BrokerDown when Redis does not answer."""

    def __init__(
        self, redis: Redis, reader: Redis, worker: str, incarnation: str, rules: Rules = DEFAULT_RULES
    ) -> None:
        """`reader` serves blocking reads; its socket timeout must exceed BLOCK_MS."""
        self._redis = redis
        self._reader = reader
        self._worker = worker
        self._incarnation = incarnation
        self._rules = rules
        self._remembered_ms = math.ceil(max(REMEMBERED_MS, FADED_HALF_LIVES * rules.half_life_ms))
        self._claim = Step(redis, scripts.text("claim"))
        self._ahead = Ahead(redis)
        self._beat = redis.register_script(scripts.text("beat"))
        self._settle = Step(redis, scripts.text("settle"))
        self._requeue = redis.register_script(scripts.text("requeue"))
        self._unclaim = redis.register_script(scripts.text("unclaim"))
        self._leave = redis.register_script(scripts.text("leave"))
        self._return_rules: list[str | int | float] = [
            keys.LEVEL_WEIGHT,
            RETURNED_LIFETIME_MS,
            keys.attained(""),
            rules.half_life_ms,
        ]
        # What each claim says alike is made once: a claim stands between a ticket and its engine.
        self._line_names = [f(worker) for f in (keys.line, keys.running, keys.back, keys.urgent, keys.holding)]
        self._who_asks: list[Argument] = [
            worker, incarnation, RUNNING_LIFETIME_MS, keys.job(""), keys.wake(""), keys.attained(""),
        ]  # fmt: skip
        self._obeyed: list[Argument] = [
            rules.ageing_ms, rules.half_life_ms, rules.urgent_share,
            MOST_URGENT_LEVEL, LONGEST_HOLD_MS, self._remembered_ms, LEARNT,
        ]  # fmt: skip
        self._seen = "$"
        self._unheld: dict[str, float] = {}
        self.drain_left_ms: int | None = None  # as the last beat found it; None: the worker is not to be drained

    @property
    def rules(self) -> Rules:
        """What the claims obey."""
        return self._rules

    def claim(
        self, slots: int = 1, tickets: int = 1, cached: Sequence[Cached] = (), token_ms: float = 0.0
    ) -> ClaimedJob | None:
        """The best job of the line, now running here; None when the line is empty.

        Of the worker's `slots` one must be free; `tickets` are held back by it, this one included; `cached` is what
        the free slots hold, and `token_ms` the prefill of a token here. Raises SlotKept.
        redis-py may send the command twice, and both copies may be carried out: the token makes them one claim.
        """
        question = self._question(slots, tickets, cached, token_ms)
        with broker_errors():
            return _claimed(self._claim(question.names, question.arguments), question.token)

    def ask(self, slots: int, tickets: int, cached: Sequence[Cached], token_ms: float) -> Question | None:
        """As `claim`, for a thread that may not wait: another one must take the `answer`, or `drop` it.

        None when it cannot be sent just now; it has to be a `claim` then. `beat` makes the connection for it.
        """
        question = self._question(slots, tickets, cached, token_ms)
        sent = self._ahead.send(self._claim.command(question.names, question.arguments))
        return question if sent else None

    def answer(self, question: Question) -> ClaimedJob | None:
        """What `claim` returns for it, or raises; an answer that is lost takes its time limit, and then as long as a
        `claim`."""
        with broker_errors():
            try:
                found = self._ahead.answer()
            except (RedisError, OSError) as error:
                log.info("claim_asked_again", reason=type(error).__name__)
                found = self._claim(question.names, question.arguments)
        return _claimed(found, question.token)

    def drop(self) -> None:
        """Nobody takes the answer. A job that it claimed goes back into the line, as `beat` says."""
        self._ahead.drop()

    def _question(self, slots: int, tickets: int, cached: Sequence[Cached], token_ms: float) -> Question:
        token = os.urandom(16).hex()
        held = orjson.dumps([(one.conversation, one.level, one.prefill_ms, one.left_ms) for one in cached])
        asked = [*self._who_asks, token, slots, tickets, *self._obeyed, held, token_ms, WORTH, LONGEST_STEPS]
        return Question(self._line_names, asked, token)

    def settle(self, job: ClaimedJob, used_ms: float, output_tokens: int | None, *, in_tool_call: bool) -> None:
        """Charge `job`'s agent and key what was used in place of what was expected, once, however often it is said.

        `output_tokens` is None when the answer did not finish: nothing is learnt from its length. An agent
        `in_tool_call` is about to come back.
        """
        agent, rules = agent_name(job.key, job.agent), self._rules
        names = [keys.settled(job.id, job.attempt), keys.attained(f"agent:{agent}"), keys.attained(f"key:{job.key}")]
        names += [keys.lengths(f"{job.kind.value}:{agent}"), keys.lengths("all"), keys.back(self._worker)]
        arguments: list[str | int | float] = [
            used_ms, job.expected_ms, job.claimed_ms, rules.half_life_ms, self._remembered_ms,
            "" if output_tokens is None else math.log(max(1, output_tokens)), MOST_SAMPLES, LENGTHS_MS,
            pair_name(job.level, job.key, job.agent) if in_tool_call else "", rules.return_hold_ms, SETTLED_MS,
        ]  # fmt: skip
        with broker_errors():
            self._settle(names, arguments)

    def past(self, job: ClaimedJob) -> list[Delta]:
        """What earlier attempts have told of this answer."""
        if job.attempt == 1:
            return []
        with broker_errors():
            entries: Any = self._redis.xrange(keys.stream(job.id))
        return [delta for _, fields in entries for delta in decode_deltas(fields[b"d"])]

    def give_up(self, job: ClaimedJob, *, spared: bool = False) -> bool:
        """Put a job whose answer was lost back into the line for another attempt; False when it has had them all.

        `spared`: the worker itself cut it, as planned, and that does not count.
        """
        names = requeue_keys(job.id, self._worker)
        with broker_errors():
            arguments = requeue_arguments(job.id, self._incarnation, alive=True, spared=spared)
            return bool(self._requeue(names, arguments))

    def beat(self, info: WorkerInfo, lifetime_ms: int, running: Sequence[str]) -> dict[str, str] | None:
        """Renew lease and running jobs. Returns job -> state of each, or None if another process has our name.

        A job claimed here that is not among `running` for UNHELD_S goes back into the line when nothing was written
        of it: the answer to its claim was lost on the way. One that was begun is left to `recovery`.
        """
        names = [keys.lease(self._worker), keys.WORKERS, keys.running(self._worker), keys.drain(self._worker)]
        for job_id in running:
            names += [keys.job(job_id), keys.stream(job_id)]
        arguments: list[str | int] = [
            self._worker,
            self._incarnation,
            info.model_dump_json(),
            lifetime_ms,
            RUNNING_LIFETIME_MS,
            keys.wake(""),
            DRAIN_MARK_MS,
        ]
        with broker_errors():
            answer: Any = self._beat(names, arguments)
        if answer[0] == 0:
            return None
        self.drain_left_ms = None if answer[3] < 0 else int(answer[3])
        self._ahead.connect()
        self._return_unheld({job_id.decode() for job_id in answer[2]} - set(running))
        return dict(zip(running, (state.decode() for state in answer[1]), strict=True))

    def _return_unheld(self, unheld: set[str]) -> None:
        self._unheld = {job_id: self._unheld.get(job_id, monotonic()) for job_id in unheld}
        for job_id, since_s in self._unheld.items():
            if monotonic() - since_s < UNHELD_S:
                continue
            names = [keys.job(job_id), keys.stream(job_id), keys.line(self._worker), keys.running(self._worker)]
            with broker_errors():
                back = self._unclaim(names, [job_id, self._incarnation, *self._return_rules])
            log.warning("job_claimed_by_nobody", job=job_id, worker=self._worker, waits_again=bool(back))

    def tickets(self) -> int:
        """How many tickets lie in this worker's queue."""
        pipeline = self._redis.pipeline(transaction=False)
        for tickets in keys.level_lists(self._worker):
            pipeline.llen(tickets)
        with broker_errors():
            return sum(pipeline.execute())

    def leave(self, *, told: bool) -> None:
        """Give the lease back, so that nobody waits for it to run out; another process's is left alone.

        A worker that was `told` to end takes the mark of its drain along; one that failed comes back drained.

        The worker stays known: `recovery` looks after its line and forgets it when that is empty.
        """
        with broker_errors():
            self._leave([keys.lease(self._worker), keys.drain(self._worker)], [self._incarnation, "1" if told else ""])

    def cancellations(self) -> list[str]:
        """Jobs to stop, as they are cancelled, and "" for one that came while a slot was kept; waits up to BLOCK_MS.

        From the first call on none is missed.
        """
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


def _claimed(found: list[Any] | None, token: str) -> ClaimedJob | None:
    """Raises SlotKept."""
    if found is None:
        return None
    if len(found) == 1:
        raise SlotKept(found[0])
    job_id, attempt, level, agent, conversation, kind, queue_ms, reserve, body, key, *rest = found
    expected_ms, claimed_ms, trace, waited_ms = rest
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
        key=key.decode(),
        expected_ms=float(expected_ms),
        claimed_ms=claimed_ms,
        waited_ms=waited_ms,
        traceparent=trace.decode(),
        span_id=attempt_span(token),
    )
