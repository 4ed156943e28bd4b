"""The job record and the line, from the API's side.

Owns: admitting, cancelling, moving, burying and forgetting a job; each is one atomic step in `lua/`.
Never: claims or runs a job (`claims`), decides where it goes (`policy`), publishes a ticket (`queue`).

    queued --claim--> running --append(final)--> done | failed
       |                 |
       +--cancel--> (gone)  +--cancel--> cancelled --append--> (gone)
"""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from redis.asyncio import Redis

from infra import keys
from infra.redis_client import broker_errors
from infra.redis_script import Script
from scheduler import admitting, scripts
from scheduler.admitting import API_LIFETIME_MS, ENDED_LIFETIME_MS, URGENT_MS, Admission, Limits
from scheduler.attempts import LIVES_ON_MS, WAITS_AT_LEAST_MS, requeue_arguments, requeue_keys
from scheduler.contract import Delta, JobSpec, encode_deltas
from scheduler.policy.claiming import MOST_URGENT_LEVEL
from scheduler.policy.placement import Candidate, Home, Known
from scheduler.remembered import EVERYONE, Remembered, known_of, whose
from scheduler.ticket import NO_TICKET, Ticket
from scheduler.whereabouts import Found, Whereabouts

__all__ = ["API_LIFETIME_MS", "ENDED_LIFETIME_MS", "Admission", "Jobs", "Limits"]


WAKES = 64  # of a stream that is read all the time


class Jobs:
    """The store of records and lines. All methods raise BrokerDown when Redis does not answer."""

    def __init__(self, redis: Redis, api: str, limits: Limits, remembered: Remembered | None = None) -> None:
        self._redis = redis
        self._remembered = remembered or Remembered()
        self._api = api
        self._limits = limits
        self._admit = Script(redis, scripts.text("admit"))
        self._cancel = redis.register_script(scripts.text("cancel"))
        self._move = redis.register_script(scripts.text("move"))
        self._requeue = redis.register_script(scripts.text("requeue"))
        self._bury = redis.register_script(scripts.text("bury"))
        self._whereabouts = Whereabouts(redis)

    @property
    def queue_limit(self) -> int:
        """How many jobs a line may hold."""
        return self._limits.queue

    @property
    def move_margin_ms(self) -> int:
        """How much sooner an answer must be for a conversation to leave its home."""
        return self._limits.move_margin_ms

    @property
    def urgent_share(self) -> float:
        """Share of a worker's slots that is kept for the urgent levels while such jobs come."""
        return self._limits.urgent_share

    async def known(self, spec: JobSpec, *, fresh: bool = False) -> Known:
        """What is known of the job's conversation and of answers like its own; one round trip, or none where this
        process remembers it and needs nothing `fresh`."""
        if not fresh and (remembered := self._remembered.known(spec)) is not None:
            return remembered
        conversation = spec.identity.conversation
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hmget(keys.home(conversation), "worker", "tokens", "used_ms")
        for whom in (whose(spec), EVERYONE):
            pipeline.hmget(keys.lengths(whom), "n", "mean", "m2")
        with broker_errors():
            (worker, tokens, used_ms), *lengths = await pipeline.execute()
        home = Home(worker.decode(), int(tokens or 0), int(used_ms or 0)) if worker else None
        own, everyone = map(admitting.samples, lengths)
        self._remembered.lives(conversation, home)
        self._remembered.lengths(spec, own, everyone)
        return known_of(spec, own, everyone, home)

    async def admit(
        self,
        spec: JobSpec,
        candidates: Sequence[Candidate],
        retry_after_s: int,
        known: Known | None = None,
        attempts_before: int = 0,
        ticket: Ticket = NO_TICKET,
    ) -> Admission:
        """Put the job into the line of the candidate that answers it soonest, and lay its ticket there; `known` is what
        they were made from.

        Its attempts are numbered after `attempts_before`.

        Raises QueueFull (with `retry_after_s`) when every line is full, NoWorker when no candidate is alive, HomeMoved
        when `known` was remembered and is not true any more.
        """
        known = known or admitting.unknown(spec)
        names, arguments = admitting.step(spec, self._api, self._limits, known, candidates, attempts_before, ticket)
        with broker_errors():
            answer = (await self._admit(names, arguments)).split(b",")
        admission = admitting.outcome(answer, candidates, known, retry_after_s)
        if len(answer) > admitting.OWN_AT:
            own, everyone = answer[admitting.OWN_AT : admitting.ALL_AT], answer[admitting.ALL_AT :]
            self._remembered.lengths(spec, admitting.samples(own), admitting.samples(everyone))
        return admission

    async def announce(self) -> None:
        """Say that this API process lives; the jobs of one that is silent for API_LIFETIME_MS are given up.

        It needs memory of the broker, as the workers' signs of life do: one that is full hears neither.
        """
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.xadd(keys.wake(self._api), {"job": ""}, maxlen=WAKES)
        pipeline.pexpire(keys.wake(self._api), API_LIFETIME_MS)
        pipeline.sadd(keys.APIS, self._api)
        pipeline.pexpire(keys.APIS, API_LIFETIME_MS)
        with broker_errors():
            await pipeline.execute()

    async def begin_again(self, job_id: str, worker: str, last_id: str, said: Sequence[Delta]) -> None:
        """Make room for a job that the broker lost: nothing is left of it but what its client was told, which stands
        at `last_id`, where its reader has been."""
        stream = keys.stream(job_id)
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.delete(keys.job(job_id), stream)
        pipeline.zrem(keys.line(worker), job_id)
        pipeline.hdel(keys.running(worker), job_id)
        if said:
            pipeline.xadd(stream, {"d": encode_deltas(said)}, id=last_id)
            pipeline.pexpire(stream, WAITS_AT_LEAST_MS + LIVES_ON_MS)
        with broker_errors():
            await pipeline.execute()

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

    async def move(
        self, job_id: str, old: str, new: Candidate, level: int, conversation: str, *, for_balance: bool = False
    ) -> bool:
        """Move a queued job to another line; False when it was no longer queued there or the other line is full, or it
        was moved for balance once before and is to be again."""
        names = [keys.job(job_id), keys.line(old), keys.line(new.worker), keys.level_list(old, level)]
        names += [keys.home(conversation), keys.homes(old), keys.homes(new.worker)]
        names += [keys.urgent(new.worker), keys.holding(new.worker), keys.control(new.worker)]
        arguments: list[str | int | float] = [
            job_id, old, new.worker, conversation, self._limits.home_ms, self._limits.queue, new.new_tokens,
            new.expected_ms, int(for_balance), MOST_URGENT_LEVEL, URGENT_MS, uuid4().hex,
        ]  # fmt: skip
        with broker_errors():
            return bool(await self._move(names, arguments))

    async def requeue(self, job_id: str, worker: str, incarnation: str) -> bool:
        """Put the running job of a dead incarnation back into that worker's line, for another attempt; False when it
        has had them all, has ended, runs elsewhere, or the incarnation lives after all."""
        with broker_errors():
            arguments = requeue_arguments(job_id, incarnation, alive=False)
            return bool(await self._requeue(requeue_keys(job_id, worker), arguments))

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

    async def whereabouts(self, job_id: str) -> Found | None:
        """As `Whereabouts.find`."""
        return await self._whereabouts.find(job_id)

    async def met_window(self, key_name: str, session: str) -> None:
        """Remember for ten minutes that this session was told its prompt is too long; a compaction may come twice."""
        with broker_errors():
            await self._redis.set(keys.overflow(key_name, session), 1, ex=600)
