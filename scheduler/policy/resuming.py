"""How an answer goes on that another attempt has begun.

Owns: what was said of it already, and what the next attempt has to do so that the client sees one answer.
Never: reads a stream, speaks to an engine. Pure.

A client may have seen everything that stands in the job's stream, and nothing else. So:

- with a finished tool call in it the answer ends there: a call is never made twice;
- with text in it, the text is given to the engine as the beginning of its answer, which goes on from there; where that
  may lose a call, an answer at temperature 0 is made again, and must say the same so far;
- with thoughts only, or nothing, it is made again, and of the thoughts only what goes beyond those that were seen is
  told: an engine that repeats itself, as it does at temperature 0, goes on without a seam.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from scheduler.contract import (
    Block,
    Delta,
    GenerationRequest,
    Message,
    Started,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolCall,
)


@dataclass(frozen=True, slots=True)
class Said:
    """What the attempts before have told of an answer."""

    started: Started | None = None
    thinking: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether there is no more than a beginning."""
        return not (self.thinking or self.text or self.calls)

    @property
    def characters(self) -> int:
        """The size of it, as far as the model wrote it."""
        calls = sum(len(call.name) + len(call.arguments) for call in self.calls)
        return len(self.thinking) + len(self.text) + calls


def said(deltas: Iterable[Delta]) -> Said:
    """What `deltas` told, of however many attempts."""
    found = Said()
    for delta in deltas:
        match delta:
            case Started():
                found = replace(found, started=found.started or delta)
            case ThinkingDelta(text=text):
                found = replace(found, thinking=found.thinking + text)
            case TextDelta(text=text):
                found = replace(found, text=found.text + text)
            case ToolCall():
                found = replace(found, calls=(*found.calls, delta))
    return found


def retold(past: Said) -> list[Delta]:
    """What `said` makes the same of, in as few deltas as it takes."""
    deltas: list[Delta] = [past.started] if past.started else []
    deltas += [ThinkingDelta(past.thinking)] if past.thinking else []
    deltas += [TextDelta(past.text)] if past.text else []
    return [*deltas, *past.calls]


def goes_on(past: Said) -> bool:
    """Whether the engine is given the text as a beginning; else the answer is made again, or is over."""
    return bool(past.text.strip()) and not past.calls


def given(request: GenerationRequest, past: Said, said_tokens: int, *, blanks: bool) -> GenerationRequest:
    """The request whose answer goes on where `past` ends, which took `said_tokens`.

    Without `blanks` the beginning has none at its end: some engines and templates cut them off, and `Seam` then keeps
    them from being told twice. With them the engine goes on from the very tokens it had made, more often.
    """
    if not goes_on(past):
        return request
    text = past.text if blanks else past.text.rstrip()
    blocks: tuple[Block, ...] = (TextBlock(text=text),)
    if past.thinking:
        blocks = (ThinkingBlock(thinking=past.thinking), *blocks)
    messages = request.messages
    if messages[-1].role == "assistant":
        blocks = (*messages[-1].content, *blocks)
        messages = messages[:-1]
    message = Message(role="assistant", content=blocks)
    left = max(1, request.max_tokens - said_tokens)
    return request.model_copy(update={"messages": (*messages, message), "max_tokens": left})


@dataclass(slots=True)
class Seam:
    """Takes out of the next attempt's deltas what the client has seen already.

    `thinking` and `text` are what of it has not come again yet.
    """

    thinking: str = ""
    text: str = ""
    differed: bool = False  # what came again is not what was seen

    @classmethod
    def after(cls, past: Said, *, blanks: bool) -> "Seam":
        """`blanks`: those at the end of the text were given to the engine."""
        if goes_on(past):
            return cls() if blanks else cls(text=past.text[len(past.text.rstrip()) :])
        return cls(thinking=past.thinking, text=past.text)

    def new(self, delta: Delta) -> Delta | None:
        """What of `delta` is new; None: nothing."""
        match delta:
            case ThinkingDelta(text=text):
                self.differed = self.differed or _differs(text, self.thinking)
                rest, self.thinking = _beyond(text, self.thinking)
                return ThinkingDelta(rest) if rest else None
            case TextDelta(text=text):
                self.differed = self.differed or _differs(text, self.text)
                rest, self.text = _beyond(text, self.text)
                return TextDelta(rest) if rest else None
        return delta

    def same_so_far(self, delta: Delta) -> bool:
        """After `new`: whether an answer that is made again says all that was seen, as it was, before anything else."""
        if isinstance(delta, ThinkingDelta):
            return not self.differed
        if isinstance(delta, TextDelta):
            return not self.differed and not self.thinking
        return isinstance(delta, Started) or not (self.differed or self.thinking or self.text)


def _differs(text: str, seen: str) -> bool:
    return not (text.startswith(seen) or seen.startswith(text))


def _beyond(text: str, seen: str) -> tuple[str, str]:
    """What of `text` goes beyond `seen`, and what of `seen` may still come; what differs is all new from there on."""
    same = 0
    while same < min(len(text), len(seen)) and text[same] == seen[same]:
        same += 1
    return (text[same:], "") if same < len(text) else ("", seen[same:])
