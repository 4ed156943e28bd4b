"""Tools that need not be read again: an agent sends the same 70 kB of them, most of its body, each turn.

Owns: which lists of tools are known by their bytes, and reading a body without the one it holds.
Never: reads a list (`request`); says what is wrong with a body: what is not found here is read in full.

Why a body is the same read without a known list. Its bytes, where they stand, are replaced by a mark, a string that no
client can know. If what is left reads as an object whose own `tools` is the mark, then the mark was read there as one
value, so the list stood as one value in the same place: the two are complete values, and JSON lets either stand where
the other can without a change to what is around it. A list that stood elsewhere (inside a call's arguments, in a text,
or before a second key `tools`) leaves the mark elsewhere, or leaves no JSON.
A list is known by what orjson writes of it: that reads back as itself, holds nothing that `body` would clean, and was
no deeper than is allowed at this very place. Of a client that writes otherwise (blanks between, escapes without need)
nothing is learned, and its tools are read each time.
"""

from secrets import token_hex
from typing import Any, NamedTuple

import orjson

from api.protocol.body import read_object
from infra.errors import BadRequest
from scheduler.tool_lists import KNOWN_LIST_BYTES, KNOWN_LISTS, ToolList

KEY = b'"tools":'
_MARK = token_hex(16)
_MARK_AS_JSON = orjson.dumps(_MARK)


class SentTools(NamedTuple):
    """What became of a body's tools: those that the client runs itself, and the names of the others."""

    kept: ToolList
    removed: tuple[str, ...]


class Found(NamedTuple):
    """A body whose tools were known; `rest` is all else of it."""

    rest: dict[str, Any]
    tools: SentTools


class KnownTools:
    """The lists learned last, KNOWN_LISTS at most.

    Threads may share it: of lists learned at once one may be lost, to be learned again.
    """

    def __init__(self) -> None:
        self._lists: tuple[tuple[bytes, SentTools], ...] = ()

    def find(self, raw: bytes) -> Found | None:
        """The body `raw` without its tools, None unless they are known. Only the first place is looked at that may hold
        them."""
        start = _start(raw)
        for text, tools in self._lists:
            if raw.startswith(text, start):
                rest = _rest(raw, start, start + len(text))
                return None if rest is None else Found(rest, tools)
        return None

    def learn(self, raw: bytes, tools: list[Any], read: SentTools) -> None:
        """Remembers that `tools`, as they came in the body `raw`, were read as `read`. Too large ones are not kept."""
        text, lists = orjson.dumps(tools), self._lists
        as_it_came = raw.startswith(text, _start(raw))
        if as_it_came and len(raw) <= KNOWN_LIST_BYTES and all(text != known for known, _ in lists):
            self._lists = ((text, read), *lists[: KNOWN_LISTS - 1])


def _start(raw: bytes) -> int:
    """Where a list of tools may begin; the end when there is none."""
    place = raw.find(KEY + b"[")
    return len(raw) if place < 0 else place + len(KEY)


def _rest(raw: bytes, start: int, end: int) -> dict[str, Any] | None:
    """The body without the tools that stand from `start` to `end`, None when that is not their place."""
    try:
        body = read_object(b"".join((raw[:start], _MARK_AS_JSON, raw[end:])))
    except BadRequest:
        return None
    return body if body.pop("tools", None) == _MARK else None
