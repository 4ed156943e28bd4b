"""Puts the pieces of the model's tool calls together.

Owns: what makes a call fit to be sent: its name is one that was declared, its arguments are one JSON object. A call
that is not fit is mended where that is safe, else said in text; it is never an error.
Never: sends a part of a call. A call is one whole delta, so that a break in mid-call needs no undoing.
"""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import json_repair
import orjson

from scheduler.contract import TextDelta, ToolCall

SHOWN_CHARACTERS = 500


def new_call_id() -> str:
    """An id of our own: the engine's are unique within one answer only by luck of its generator."""
    return f"toolu_{secrets.token_hex(12)}"


@dataclass(slots=True)
class _OpenCall:
    index: int
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class CallAssembler:
    """Collects the calls of one answer. With `parallel` off, only the first one counts."""

    def __init__(self, names: Sequence[str], *, parallel: bool, make_id: Callable[[], str] = new_call_id) -> None:
        self._names = tuple(names)
        self._parallel = parallel
        self._make_id = make_id
        self._open: _OpenCall | None = None
        self.sent = 0

    def feed(self, pieces: Sequence[dict[str, Any]]) -> list[ToolCall | TextDelta]:
        """The calls that are complete because a next one begins with these pieces."""
        complete: list[ToolCall | TextDelta] = []
        for piece in pieces:
            index = piece.get("index", 0)
            if self._open is None or self._open.index != index:
                complete += self.finish()
                self._open = _OpenCall(index)
            function = piece.get("function") or {}
            self._open.name = self._open.name or function.get("name") or ""
            self._open.arguments.append(function.get("arguments") or "")
        return complete

    def finish(self) -> list[ToolCall | TextDelta]:
        """The call that was open, now that no more of it comes."""
        call, self._open = self._open, None
        if call is None or (self.sent and not self._parallel):
            return []
        return [self._delta(call.name, "".join(call.arguments))]

    def finish_cut_off(self) -> tuple[list[ToolCall | TextDelta], bool]:
        """Like `finish` after the token limit: an incomplete call is dropped, never mended. True: one was dropped."""
        if self._open is not None and not _is_object("".join(self._open.arguments)):
            self._open = None
            return [], True
        return self.finish(), False

    def _delta(self, said_name: str, arguments: str) -> ToolCall | TextDelta:
        name = _declared(said_name, self._names)
        if name is None:
            return TextDelta(f"[The call of `{_shown(said_name)}` was left out: there is no tool of this name.]")
        mended = mended_arguments(arguments)
        if mended is None:
            return TextDelta(f"[The call of `{name}` was left out: its arguments are no JSON: {_shown(arguments)}]")
        self.sent += 1
        return ToolCall(id=self._make_id(), name=name, arguments=mended)


def mended_arguments(arguments: str) -> str | None:
    """`arguments` untouched when they are a JSON object, else mended to one, else None."""
    if not arguments.strip():
        return "{}"
    if _is_object(arguments):
        return arguments
    try:
        found = json_repair.loads(arguments)
        found = json_repair.loads(found) if isinstance(found, str) else found
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not found:
        return None
    text = json.dumps(found, ensure_ascii=False, allow_nan=True)
    text = text.encode("utf-8", "replace").decode()
    return text if _is_object(text) else None


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _declared(name: str, names: Sequence[str]) -> str | None:
    """The declared name that is meant: the same, or the only one that differs in upper and lower case alone."""
    if name in names:
        return name
    alike = [known for known in names if known.lower() == name.strip().lower()]
    return alike[0] if len(alike) == 1 else None


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
