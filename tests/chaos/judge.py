"""What became of each request, and whether that is right.

Owns: the record of one asking, the verdict on it, and the findings of a whole run.
Never: asks, waits.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.acceptance.wire import Event, in_order

# whole: to its message_stop. told: an error event. refused: a status before the stream. broken: the connection went.
Outcome = Literal["whole", "told", "refused", "broken"]
OUTCOMES: tuple[Outcome, ...] = ("whole", "told", "refused", "broken")


@dataclass(frozen=True)
class Expected:
    """An answer as it is when nothing dies: its text, its thoughts, and its calls as (name, arguments)."""

    text: str
    thinking: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()

    @property
    def stop_reason(self) -> str:
        return "tool_use" if self.calls else "end_turn"


@dataclass
class Asking:
    """One sending of one request, and what came back. Times are of the monotonic clock."""

    who: str
    began_s: float
    outcome: Outcome = "broken"
    detail: str = ""
    events: list[Event] = field(default_factory=list)
    heard_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    api: str = "api0"


@dataclass
class Findings:
    """What was seen of a whole run."""

    askings: list[Asking] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    answered: int = 0
    calls_run: int = 0

    def count(self, outcome: Outcome) -> int:
        return sum(asking.outcome == outcome for asking in self.askings)

    @property
    def good(self) -> bool:
        return not (self.wrong or self.lost or self.left)


def verdict(asking: Asking, expected: Expected) -> str:
    """What is wrong with a whole answer; '' when it is the undisturbed one, told once and in order."""
    try:
        in_order(asking.events)
    except AssertionError as error:
        return f"{asking.who}: events out of order: {error}"
    found = answer_of(asking.events)
    if found != expected:
        return f"{asking.who}: expected {expected}, got {found}"
    reason = asking.events[-2]["delta"]["stop_reason"]
    if reason != expected.stop_reason:
        return f"{asking.who}: stopped with {reason}, expected {expected.stop_reason}"
    return ""


def said_in_vain(asking: Asking, expected: Expected) -> str:
    """What was false in an answer that came to no end; '' when all of it was a beginning of the right one."""
    found = answer_of(asking.events)
    fits = expected.text.startswith(found.text) and expected.thinking.startswith(found.thinking)
    if fits and found.calls == expected.calls[: len(found.calls)]:
        return ""
    return f"{asking.who}: before it broke it said {found}, expected a beginning of {expected}"


def answer_of(events: Iterable[Event]) -> Expected:
    """What the events tell; a call that did not come whole is none."""
    text, thinking, blocks = "", "", {}
    for event in events:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            blocks[event["index"]] = [event["content_block"]["name"], ""]
        if event["type"] == "content_block_delta":
            delta = event["delta"]
            text += delta.get("text", "")
            thinking += delta.get("thinking", "")
            if "partial_json" in delta:
                blocks[event["index"]][1] += delta["partial_json"]
    calls = tuple((name, arguments) for name, raw in blocks.values() if (arguments := _json(raw)) is not None)
    return Expected(text, thinking, calls)


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all do not exceed; nan of none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _json(raw: str) -> dict[str, Any] | None:
    try:
        return dict(json.loads(raw))
    except ValueError:
        return None
