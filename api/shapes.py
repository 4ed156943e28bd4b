"""The shapes of what was answered, for who records a trace: sizes, times and salted names, never a word.

Owns: what a shape holds, and who listens now. While nobody does, an ended request costs one look at an empty list.
Never: a text, or a name that whoever has a recording could trace back to one: each name is hashed with the recording's
own salt, which is kept here for as long as the recording lasts and is written nowhere. Who records knows it meanwhile.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from itertools import pairwise
from time import monotonic
from typing import Any

from api.protocol.request import Call
from infra.errors import Refused
from scheduler.policy.chain import tools_link

NAME_BYTES = 6  # a recording has thousands of pieces, no billions
MOST_WAITING = 50_000  # pieces (8 MB) that a recorder has not read yet; what is beyond is dropped, and it is told
MOST_LISTENERS = 16  # each costs every request that ends a hash for each of its pieces
EVERY_S = 1.0
TOLD = ("outcome", "stop_reason", "level", "prompt_tokens", "cached_tokens", "output_tokens", "queue_ms", "first_ms")
NO_TOOLS = tools_link(()).name


class Listener:
    """One recording in this process."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._shapes: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._waiting = 0  # pieces of them
        self.dropped = 0

    def hear(self, call: Call, fields: Mapping[str, Any], ended_s: float) -> None:
        pieces = len(call.chain.characters)
        if self._waiting + pieces > MOST_WAITING:
            self.dropped += 1
            return
        self._waiting += pieces
        self._shapes.put_nowait(self._shape(call, fields, ended_s))

    async def next(self) -> dict[str, Any] | None:
        """The next shape; None when none comes within a second."""
        try:
            shape = await asyncio.wait_for(self._shapes.get(), EVERY_S)
        except TimeoutError:
            return None
        self._waiting -= len(shape["pieces"])
        return shape

    def _shape(self, call: Call, fields: Mapping[str, Any], ended_s: float) -> dict[str, Any]:
        """`pieces` are [name, characters] of the beginning (system and tools) and of each message."""
        who, links = call.identity, call.chain
        sizes = (links.characters[0], *(after - before for before, after in pairwise(links.characters)))
        pieces = zip((links.base, *links.messages), sizes, strict=True)
        return {
            "ended_s": round(ended_s, 4),
            "took_ms": fields["took_ms"],
            "session": self._name(who.session or who.conversation),
            "agent": self._name(who.agent),
            "conversation": self._name(who.conversation),
            "kind": who.kind.value,
            "tools": links.tools != NO_TOOLS,
            "pieces": [[self._name(name), size] for name, size in pieces],
            **{name: fields[name] for name in TOLD if name in fields},
        }

    def _name(self, of: str) -> str:
        return blake2b(of.encode(), digest_size=NAME_BYTES, key=self._salt).hexdigest()


class Shapes:
    """Who listens in this process."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def ended(self, call: Call | None, fields: Mapping[str, Any]) -> None:
        """`fields` are those of the request's log line; one that was never understood has no shape."""
        if call is not None:
            for listener in self._listeners:
                listener.hear(call, fields, monotonic())

    @contextmanager
    def listening(self, salt: bytes) -> Iterator[Listener]:
        """Raises Refused where MOST_LISTENERS listen already."""
        if len(self._listeners) >= MOST_LISTENERS:
            raise Refused(f"{MOST_LISTENERS} recordings run here already: end one of them")
        listener = Listener(salt)
        self._listeners.append(listener)
        try:
            yield listener
        finally:
            self._listeners.remove(listener)
