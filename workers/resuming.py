"""Going on with an answer that was lost with its engine or worker.

Owns: what an attempt after the first one asks of the engine, and what of its deltas the client has not seen.
Never: decides that there is another attempt (`attempts`), or the rules of going on (`scheduler.policy.resuming`).
"""

import math
from dataclasses import dataclass, replace

import structlog

from infra.errors import CallMayBeLost, EngineRefused
from scheduler.claims import Claims
from scheduler.contract import (
    ClaimedJob,
    Delta,
    Finished,
    GenerationRequest,
    Started,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ToolCall,
)
from scheduler.policy.resuming import Said, Seam, given, goes_on, said
from workers.llama.client import Prompt
from workers.serving import Serving

log = structlog.get_logger(__name__)
CHARACTERS_PER_TOKEN = 4.0
SHORTEST = "a"
LOST = "the answer was lost where a tool call may have followed; ask again"


@dataclass(slots=True)
class Resumed:
    """A request as this attempt asks it. `said_tokens` of its prompt are the answer's own beginning."""

    request: GenerationRequest
    past: Said
    said_tokens: int
    seam: Seam
    told_more: bool = False
    exact: bool = False  # the whole answer is made again, and must say what was said

    def made_again(self, asked: GenerationRequest) -> "Resumed":
        """The request as it came, for an answer whose beginning led nowhere."""
        asked = _within(asked, asked)
        return Resumed(asked, self.past, 0, Seam(thinking=self.past.thinking, text=self.past.text), exact=True)

    def waited_s(self, job: ClaimedJob) -> float:
        """For how long its client has waited for the first token, which may be another one's to come."""
        return job.queue_ms / 1000 if self.past.nothing else 0.0

    def outward(self, delta: Delta) -> Delta | None:
        """The delta as the client is to see it, in one answer with all that came before; None: not at all.

        Raises CallMayBeLost where a tool call may have been lost on the way: a turn that ends without it would stop the
        agent, an error makes its client ask again.
        """
        if self.exact:
            return self._again(delta)
        if isinstance(delta, Started) and self.past.started is not None:
            delta = replace(delta, queue_ms=self.past.started.queue_ms)  # since then it was not only waiting
        if isinstance(delta, Started | Finished) and self.said_tokens and self.past.started is not None:
            # Not what the engine says: its prompt holds the beginning, and what the template writes around it.
            prompt_tokens = self.past.started.prompt_tokens
            delta = replace(delta, prompt_tokens=prompt_tokens, cached_tokens=min(delta.cached_tokens, prompt_tokens))
        if isinstance(delta, Finished):
            if self._may_lack_a_call(delta):
                raise CallMayBeLost(LOST, retry_after_s=1)
            return replace(delta, output_tokens=delta.output_tokens + self.said_tokens)
        new = self.seam.new(delta)
        self.told_more = self.told_more or isinstance(new, TextDelta | ThinkingDelta | ToolCall)
        return new

    def _again(self, delta: Delta) -> Delta | None:
        """Of an answer that is made from its start again, in which everything has to come as it was told."""
        new = self.seam.new(delta)
        if not self.seam.same_so_far(delta):
            raise CallMayBeLost(LOST, retry_after_s=1)
        return None if isinstance(new, Started) else new  # the client has its beginning

    def _may_lack_a_call(self, end: Finished) -> bool:
        """The engine ends at once what it was given. A call that was being written leaves no trace in the stream, and
        without the blanks before it a model may not find to it again."""
        ends_at_once = bool(self.said_tokens) and not self.told_more and end.stop_reason is StopReason.END_TURN
        return ends_at_once and bool(self.request.tools) and self.request.tool_choice.mode != "none"

    def without_beginning(self, prompt: Prompt) -> Prompt:
        """What of the engine's prompt the client sent: the next turn begins with it."""
        total_tokens = max(0, prompt.total_tokens - self.said_tokens)
        return Prompt(total_tokens, min(prompt.cached_tokens, total_tokens))

    def at_window_end(self, serving: Serving) -> Finished | None:
        """The end of an answer whose own beginning fills the window; None when there is no such beginning."""
        if not self.said_tokens or self.past.started is None:
            return None
        return _end(serving, self.past.started, StopReason.WINDOW, self.said_tokens)


@dataclass(frozen=True, slots=True)
class Over:
    """Of the answer only the end is missing. `started` is of the attempt that made it, with this one's number."""

    started: Started
    end: Finished


def resume(claims: Claims, serving: Serving, job: ClaimedJob, request: GenerationRequest) -> Resumed | Over:
    """The request to ask, or the end, when what stands is a whole answer. Raises BrokerDown and EngineError."""
    past = said(claims.past(job))
    if past.started is None or past.nothing:
        return Resumed(request, past, 0, Seam())
    log.info("answer_goes_on", job=job.id, attempt=job.attempt, characters=past.characters, calls=len(past.calls))
    started = replace(past.started, attempt=job.attempt)
    if past.calls:
        said_tokens = math.ceil(past.characters / CHARACTERS_PER_TOKEN)
        return Over(started, _end(serving, started, StopReason.TOOL_USE, said_tokens))
    said_tokens = 0
    if goes_on(past):
        said_tokens = _said_tokens(serving, request, past)
    if said_tokens >= request.max_tokens:
        return Over(started, _end(serving, started, StopReason.MAX_TOKENS, request.max_tokens))
    if said_tokens and started.prompt_tokens + said_tokens >= serving.context_tokens:
        return Over(started, _end(serving, started, StopReason.WINDOW, said_tokens))
    blanks = goes_on(past) and _keeps_blanks(serving, request, past)
    again = _within(request, given(request, past, said_tokens, blanks=blanks))
    return Resumed(again, past, said_tokens, Seam.after(past, blanks=blanks))


def _within(request: GenerationRequest, again: GenerationRequest) -> GenerationRequest:
    """Its first token is not the answer's: the client waits for it as for any other."""
    limits = request.limits.model_copy(update={"first_token_s": request.limits.between_tokens_s})
    return again.model_copy(update={"limits": limits})


def _keeps_blanks(serving: Serving, request: GenerationRequest, past: Said) -> bool:
    """Whether the engine leaves the blanks at the end of a beginning where they are: not every template does."""
    if past.text == past.text.rstrip():
        return True
    try:
        return serving.ends_with(given(request, past, 0, blanks=True), past.text)
    except EngineRefused:
        return False


def _said_tokens(serving: Serving, request: GenerationRequest, past: Said) -> int:
    """Thoughts and text, beside a beginning of one token: a count takes the beginning for a finished message."""
    shortest = replace(past, thinking="", text=SHORTEST)
    long, short = (serving.count(given(request, one, 0, blanks=True)) for one in (past, shortest))
    return 1 + max(0, long - short)


def _end(serving: Serving, started: Started, reason: StopReason, output_tokens: int) -> Finished:
    return Finished(
        stop_reason=reason,
        stop_sequence=None,
        prompt_tokens=started.prompt_tokens,
        cached_tokens=started.cached_tokens,
        output_tokens=output_tokens,
        prefill_ms=0,
        decode_ms=0,
        model_hash=serving.model_hash,
        engine_bytes=serving.engine_bytes(),
    )
