"""Turns the engine's stream chunks into deltas.

Owns: the meaning of a chunk: progress, thinking, text, tool calls, usage, the reason of the end. Pure: bytes and time
are `client`'s.
Never: an unfinished call, a broken character (the engine holds back bytes that are no whole character yet), or text
behind a stop sequence.

The engine continues an answer that the client began; its stream then holds the continuation only (its whole, not
streamed, replies repeat the beginning), so nothing needs to be cut off here.
"""

import http.client
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.errors import EngineError, EngineGarbled, EngineLost, EngineRefused
from scheduler.contract import StopReason, TextDelta, ThinkingDelta, ToolCall
from scheduler.policy.garbage import Repeats
from workers.llama.calls import CallAssembler
from workers.llama.engine_log import want_of_memory
from workers.llama.stops import StopMatcher

Chunk = dict[str, Any]
# llama.cpp's own words for numbers that are none, and for a step that failed.
_CANNOT = re.compile(r"compute error|failed to (?:decode|sample)|\bnan\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The engine has the prompt and knows how much of it lies in the slot's cache."""

    total_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class End:
    """The answer is complete; the engine's own counts and times."""

    stop_reason: StopReason
    stop_sequence: str | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    prefill_ms: int
    decode_ms: int
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """What the request says about its answer, as far as it cannot be left to the engine."""

    context_tokens: int
    tool_names: tuple[str, ...] = ()
    parallel_calls: bool = True
    stop_sequences: tuple[str, ...] = ()
    repeat_limit: int = 0


Event = Prompt | TextDelta | ThinkingDelta | ToolCall


class ChunkParser:
    """State of one answer. `feed` each chunk in order; then `end`, at `[DONE]` or as soon as `stopped`."""

    def __init__(self, rules: AnswerRules) -> None:
        self._rules = rules
        self._stops = StopMatcher(rules.stop_sequences)
        self._calls = CallAssembler(rules.tool_names, parallel=rules.parallel_calls)
        self._repeats = Repeats(rules.repeat_limit)
        self._prompt: Prompt | None = None
        self._finish_reason: str | None = None
        self._call_dropped = False
        self._usage: Chunk = {}
        self._timings: Chunk = {}
        self._content_chunks = 0

    @property
    def stopped(self) -> bool:
        """A stop sequence was hit: nothing that the engine still sends matters."""
        return self._stops.hit is not None

    @property
    def generating(self) -> bool:
        """The first token has come."""
        return self._content_chunks > 0

    @property
    def finished(self) -> bool:
        """The last token has come; only figures follow."""
        return self._finish_reason is not None

    def feed(self, chunk: Chunk) -> Sequence[Event]:
        """The events of one chunk, in order.

        Raises EngineRefused when the chunk is the engine's error, EngineLost when it says that it cannot compute, and
        EngineGarbled when one token comes again and again.
        """
        if "error" in chunk:
            error = refusal(chunk["error"])
            cannot = isinstance(error, EngineRefused) and _CANNOT.search(error.message)
            raise EngineLost("the engine could not compute the next token") if cannot else error
        if "timings" in chunk:
            self._timings = chunk["timings"]
        if chunk.get("usage"):
            self._usage = chunk["usage"]
        progress = chunk.get("prompt_progress")
        if progress is not None:
            return self._progressed(progress)
        choices = chunk.get("choices")
        return self._chosen(choices[0]) if choices else ()

    def end(self) -> End:
        """The end of the answer. With a stop sequence hit, counts are those of the last chunk that was read."""
        timings, usage = self._timings, self._usage
        prompt = self._prompt or Prompt(usage.get("prompt_tokens", 0), timings.get("cache_n", 0))
        output = usage.get("completion_tokens") or timings.get("predicted_n") or self._content_chunks
        return End(
            stop_reason=self._stop_reason(prompt.total_tokens + output),
            stop_sequence=self._stops.hit,
            prompt_tokens=prompt.total_tokens,
            cached_tokens=prompt.cached_tokens,
            output_tokens=output,
            prefill_ms=round(timings.get("prompt_ms", 0)),
            decode_ms=round(timings.get("predicted_ms", 0)),
            drafted_tokens=timings.get("draft_n", 0),
            accepted_tokens=timings.get("draft_n_accepted", 0),
        )

    def _progressed(self, progress: Chunk) -> Sequence[Event]:
        if self._prompt is not None:
            return ()
        self._prompt = Prompt(progress["total"], progress["cache"])
        return (self._prompt,)

    def _chosen(self, choice: Chunk) -> Sequence[Event]:
        delta = choice.get("delta") or {}
        self._refuse_garbage(delta)
        events: list[Event] = []
        if thinking := delta.get("reasoning_content"):
            self._content_chunks += 1
            events += [*self._flushed(), ThinkingDelta(thinking)]
        if text := delta.get("content"):
            self._content_chunks += 1
            events += _as_text(self._stops.feed(text))
        if (pieces := delta.get("tool_calls")) and not self.stopped:
            self._content_chunks += 1
            events += [*self._flushed(), *self._calls.feed(pieces)]
        if (reason := choice.get("finish_reason")) and not self.stopped:
            self._finish_reason = reason
            events += [*self._flushed(), *self._last_calls(reason)]
        return events

    def _refuse_garbage(self, delta: Chunk) -> None:
        """What a call repeats counts as well: nobody sees it before it is complete."""
        pieces = [delta.get("reasoning_content"), delta.get("content")]
        pieces += [(call.get("function") or {}).get("arguments") for call in delta.get("tool_calls") or ()]
        if any(piece and self._repeats.add(piece) for piece in pieces):
            raise EngineGarbled(f"the model repeated one token more than {self._rules.repeat_limit} times; ask again")

    def _flushed(self) -> list[TextDelta]:
        return _as_text(self._stops.flush())

    def _last_calls(self, finish_reason: str) -> list[ToolCall | TextDelta]:
        if finish_reason != "length":
            return self._calls.finish()
        calls, self._call_dropped = self._calls.finish_cut_off()
        return calls

    def _stop_reason(self, tokens_in_window: int) -> StopReason:
        """Why the answer ended. A call that stands complete before the limit counts as a call."""
        if self.stopped:
            return StopReason.STOP_SEQUENCE
        if self._calls.sent and not self._call_dropped:
            return StopReason.TOOL_USE
        if self._finish_reason == "length":
            full = tokens_in_window >= self._rules.context_tokens
            return StopReason.WINDOW if full else StopReason.MAX_TOKENS
        return StopReason.END_TURN


def refusal(error: Any) -> EngineError:
    """The engine's error object as ours: the first line of its words, its status or 500.

    One that is short of memory does not refuse: another attempt may find it restarted.
    """
    if not isinstance(error, dict):
        error = {"message": str(error)}
    status = error.get("code")
    status = status if isinstance(status, int) else http.client.INTERNAL_SERVER_ERROR
    words = str(error.get("message") or "no reason given").strip().splitlines()[0]
    # A client's mistake is told with the client's words, which may be of anything.
    if status >= http.client.INTERNAL_SERVER_ERROR and (short := want_of_memory(words)):
        return EngineLost(short)
    return EngineRefused(f"the engine refused: {words[:300]}", status=status)


def _as_text(text: str) -> list[TextDelta]:
    return [TextDelta(text)] if text else []
