"""One ticket, one answer.

Owns: the straight line from a claimed job to its last delta.
Never: Celery's settings, the engine's life, the order of jobs.
"""

import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from infra.errors import (
    CallMayBeLost,
    Cancelled,
    CorralError,
    EngineGarbled,
    EngineLost,
    EngineRefused,
    EngineTimeout,
    Fenced,
    NoRoomForOutput,
    PromptTooLong,
)
from infra.observability import metrics, stages
from infra.observability.traces import NO_TRACES, Traces
from scheduler.claims import Claims
from scheduler.contract import ClaimedJob, Delta, Finished, Rates, Started
from scheduler.packing import unpack_with_chain
from scheduler.policy.chain import Chain
from scheduler.stream import Append, Retries, Writer, failure
from workers import tracing
from workers.attempts import Attempts
from workers.bases import Found, prepare
from workers.caches import Caches
from workers.llama.client import End, Event, Generation, Prompt
from workers.next_job import Begun, NextJob
from workers.resuming import Over, Resumed, resume
from workers.running import Running
from workers.serving import Serving
from workers.settling import Used, settled
from workers.slots import Slot, Want

log = structlog.get_logger(__name__)
LEAST_OUTPUT_TOKENS = 16  # with less room than this an answer is of no use
SHOWN_FRAMES = 5


class Work:
    """What a ticket makes a worker do."""

    def __init__(
        self, claims: Claims, append: Append, retries: Retries, running: Running, serving: Serving, attempts: Attempts,
        traces: Traces = NO_TRACES,
    ) -> None:  # fmt: skip
        self._traces = traces
        self._attempts = attempts
        self._claims = claims
        self._append = append
        self._retries = retries
        self._running = running
        self._serving = serving
        self._next_job = NextJob(claims, running, serving)

    def begin(self) -> Begun:
        """As `NextJob.begin`."""
        return self._next_job.begin()

    def generate(self, job_id: str, *_: object) -> None:
        """Take the best job of the line and answer it. The ticket's arguments only say which job caused it."""
        with self._next_job.work():
            self._generate(job_id)

    def _generate(self, job_id: str) -> None:
        stages.begin(traced=self._traces.on)
        stages.mark("picked_up")
        job = self._next_job.take()
        if job is None:
            return
        stages.mark("claimed")
        named = {"job": job.id, "attempt": job.attempt, "ticket": job_id}
        ended, reason = "again", ""  # it waits for another attempt
        answer = Writer(self._append, self._retries, job)
        try:
            with (
                answer,
                self._attempts.at(job, answer),
                self._running.job(job.id),
            ):
                self._answer(job, answer)
                ended = "done"
        except (Cancelled, Fenced):
            ended = "stopped"
            log.info("job_stopped", **named)
        except Exception as error:
            ended, reason = "failed", failure(error).code
            log.warning("job_failed", **named, error=type(error).__name__, reason=_reason(error))
        finally:
            metrics.ATTEMPTS.labels(ended).inc()
            self._trace(job, answer, ended, reason)
            stages.end(job.id)

    def _trace(self, job: ClaimedJob, answer: Writer, ended: str, reason: str) -> None:
        if self._traces.on and job.traceparent:
            serving = self._serving
            marks = stages.marks()
            tracing.tell(self._traces, job, serving.model_name, serving.name, answer, ended, reason, marks)

    def _answer(self, job: ClaimedJob, answer: Writer) -> None:
        with settled(self._claims, job, self._rates) as used:
            try:
                last = self._generated(job, answer, used)
                stages.mark("generated")
            except EngineGarbled:
                self._serving.said(garbled=True)
                raise
            except (EngineLost, EngineTimeout) as error:
                self._serving.doubt(error.message)  # before the job ends: a ticket that waits would take its place
                raise
        self._serving.said(garbled=False)
        # Only now: whoever hears of the end may ask again at once, and must find the conversation's slot free and its
        # agent's account settled.
        answer.write(last)

    def _generated(self, job: ClaimedJob, answer: Writer, used: Used) -> Finished:
        """Everything but the end, which is returned."""
        self._ready_caches()
        asked, links = unpack_with_chain(job.body)
        resumed = resume(self._claims, self._serving, job, asked)
        stages.mark("unpacked")
        if isinstance(resumed, Over):
            answer.write(resumed.started)
            return resumed.end
        try:
            return self._made(job, answer, used, resumed, links)
        except CallMayBeLost:
            if asked.temperature != 0:  # it would say something else
                raise
            log.info("answer_made_again", job=job.id, attempt=job.attempt)
            return self._made(job, answer, used, resumed.made_again(asked), links)

    def _made(self, job: ClaimedJob, answer: Writer, used: Used, resumed: Resumed, links: Chain) -> Finished:
        serving, caches = self._serving, self._ready_caches()
        request, used.said_tokens = resumed.request, resumed.said_tokens
        # What the next turn will begin with is what was asked.
        want = Want(job.conversation, job.agent, job.kind, links, job.level)
        with caches.table.hold(want, partial(caches.patience_s, want)) as slot:
            found = prepare(caches, serving, self._running, job, request, slot, want)
            turn = _Turn(job, resumed, slot, want, caches, found, used)
            with serving.generation(request, slot.number, resumed.waited_s(job), job.engine_trace) as generation:
                self._running.attach(job.id, generation)
                stages.mark("rendered")
                last = self._relay(turn, generation, answer)
        if last is None:
            raise EngineLost("the engine ended the answer without a reason")
        return last

    def _rates(self) -> Rates:
        return self._serving.rates

    def _ready_caches(self) -> Caches:
        if self._serving.caches is None:
            raise EngineLost("the engine is not ready")
        return self._serving.caches

    def _relay(self, turn: "_Turn", generation: Generation, answer: Writer) -> Finished | None:
        """Everything but the end, which is returned; None when there was none."""
        last: Finished | None = None
        try:
            for events in generation.together(self._next_job.under_way):
                last = self._told(turn, events, answer)
        except PromptTooLong as error:  # whoever refused it, the client is told the same maximum
            if (full := turn.resumed.at_window_end(self._serving)) is not None:
                return full
            raise PromptTooLong(error.prompt_tokens, self._limit_tokens(turn)) from None
        except EngineGarbled:
            turn.slot.held = None  # whatever it comes from may lie in the cache: that is not saved
            raise
        return last

    def _told(self, turn: "_Turn", events: list[Event], answer: Writer) -> Finished | None:
        """Write what came together. The end is returned; what came with it travels with it."""
        deltas: list[Delta] = []
        last: Finished | None = None
        try:
            for event in events:
                delta = turn.resumed.outward(self._outward(turn, event))
                if isinstance(delta, Finished):
                    last = delta
                elif delta is not None:
                    deltas.append(delta)
        except Exception:
            answer.hold(*deltas)  # whatever becomes of the answer, this was said
            raise
        if last is None:
            answer.write(*deltas)
        else:
            answer.hold(*deltas)
        return last

    def _outward(self, turn: "_Turn", event: Event) -> Delta:
        """What the client's side is told of an engine's event; the slot's books are kept on the way."""
        if isinstance(event, Prompt):
            stages.mark("prompt")
            turn.used.prompt(event.total_tokens - turn.found.cached_tokens(event.cached_tokens))
            # The engine has begun with it, even if it is refused now.
            turn.caches.prompt(turn.slot, turn.want, turn.resumed.without_beginning(event))
            self._check_fits(turn, event)
            return self._started(turn, event)
        if isinstance(event, End):
            turn.caches.ended(turn.slot, event)
            turn.used.ended(event)
            return self._finished(turn, event)
        stages.mark("token")
        turn.used.token()
        turn.caches.generating(turn.slot)
        return event

    def _limit_tokens(self, turn: "_Turn") -> int:
        """An answer's own beginning may use the reserve: its prompt was found to fit."""
        whole = turn.job.may_use_reserve or turn.resumed.said_tokens
        return self._serving.context_tokens if whole else self._serving.prompt_limit_tokens

    def _check_fits(self, turn: "_Turn", prompt: Prompt) -> None:
        context_tokens, max_tokens = self._serving.context_tokens, turn.resumed.request.max_tokens
        limit = self._limit_tokens(turn)
        if prompt.total_tokens > limit:
            raise PromptTooLong(prompt.total_tokens, limit)
        if turn.resumed.said_tokens:
            return  # it was found to leave room when it began; what is left of it is the answer's
        if context_tokens - prompt.total_tokens < min(LEAST_OUTPUT_TOKENS, max_tokens):
            raise NoRoomForOutput(prompt.total_tokens, max_tokens, context_tokens)

    def _started(self, turn: "_Turn", prompt: Prompt) -> Started:
        return Started(
            worker=self._serving.name,
            slot=turn.slot.number,
            attempt=turn.job.attempt,
            queue_ms=turn.job.queue_ms,
            prompt_tokens=prompt.total_tokens,
            cached_tokens=turn.found.cached_tokens(prompt.cached_tokens),
            source=turn.found.brought.source,
            gone=turn.slot.gone,
            restored_tokens=turn.found.brought.restored_tokens,
            restore_ms=turn.found.brought.restore_ms,
            engine_run=turn.caches.run,
        )

    def _finished(self, turn: "_Turn", end: End) -> Finished:
        return Finished(
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            prompt_tokens=end.prompt_tokens,
            cached_tokens=turn.found.cached_tokens(end.cached_tokens),
            output_tokens=end.output_tokens,
            prefill_ms=end.prefill_ms + turn.found.laid_ms,
            decode_ms=end.decode_ms,
            model_hash=self._serving.model_hash,
            engine_bytes=self._serving.engine_bytes(),
        )


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request in its slot."""

    job: ClaimedJob
    resumed: Resumed
    slot: Slot
    want: Want
    caches: Caches
    found: Found
    used: Used


def _reason(error: Exception) -> str:
    """Why a job failed, as a log may have it: in words of ours.

    An engine's refusal and another library's error may quote the prompt; of these only status and place are told.
    """
    if isinstance(error, EngineRefused):
        return f"HTTP status {error.status}"
    if isinstance(error, CorralError):
        return error.message
    frames = traceback.extract_tb(error.__traceback__)[-SHOWN_FRAMES:]
    return " > ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
