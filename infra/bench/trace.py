"""A recorded trace of agents: how large each request was, what it shared with others, and when it came. No text.

Owns: the form of the file (one JSON object a line) and what follows from its requests.
Never: a word of a prompt, an answer or a name; the words that stand in for them (`trace_words`).

A piece is the beginning (system and tools, the first of a prompt) or one message; its name is a salted fingerprint, so
equal names are equal pieces and nothing more can be told. The salt is gone once the recording ends.
"""

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Annotated, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from infra.bench.agents_session import Kind
from infra.errors import ConfigError

VERSION = 1

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Name = Annotated[str, StringConstraints(pattern="^[0-9a-f]{4,32}$")]
Word = Annotated[str, StringConstraints(pattern="^[a-z_]{0,40}$")]
Piece = tuple[Name, Count]  # and its tokens


LineT = TypeVar("LineT", bound="Strict")


class Strict(BaseModel):
    """Nothing but what is named here can be in a trace."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Head(Strict):
    """The first line."""

    corral_trace: int


class Request(Strict):
    """One answered request. It came `gap_s` after the request number `after` of its session had ended, or, as the first
    of a session, `at_s` after the recording began. Its prompt is the first `keeps` pieces of the conversation's last
    prompt, then `new`. Times are in milliseconds, counts in tokens, as the gateway told them."""

    n: Count
    at_s: Seconds
    after: Count | None
    gap_s: Seconds
    session: Name
    agent: Name
    conversation: Name
    kind: Kind
    level: Annotated[int, Field(ge=0)]
    tools: bool
    keeps: Count
    new: tuple[Piece, ...]
    prompt_tokens: Count
    cached_tokens: Count
    output_tokens: Count
    stop: Word
    queue_ms: Count
    first_ms: Count
    took_ms: Count

    @model_validator(mode="after")
    def _in_order(self) -> "Request":
        if self.after is not None and self.after >= self.n:
            raise ValueError("`after` must name an earlier request")
        return self


class Trace:
    """All requests, in the order of their ends. Raises ConfigError when one rests on another that is not there."""

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.prompts: list[tuple[Piece, ...]] = []
        self.numbers: list[int] = []  # of each request in its conversation, from 0
        self._unfold()

    @cached_property
    def sessions(self) -> int:
        return len({request.session for request in self.requests})

    @cached_property
    def turns(self) -> int:
        """Of the longest conversation."""
        return max(self.numbers) + 1

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """For each request the number of its session, and that of its conversation among those of its kind there."""
        sessions: dict[str, int] = {}
        seen: dict[tuple[str, Kind], dict[str, int]] = {}
        found = []
        for request in self.requests:
            talks = seen.setdefault((request.session, request.kind), {})
            number = talks.setdefault(request.conversation, len(talks))
            found.append((sessions.setdefault(request.session, len(sessions)), number))
        return found

    def most(self, kind: Kind) -> int:
        """Conversations of this kind in the session that has the most of them."""
        pairs = zip(self.requests, self.places, strict=True)
        return max((number + 1 for request, (_, number) in pairs if request.kind is kind), default=0)

    @cached_property
    def about(self) -> str:
        """In words."""
        kinds = Counter(request.kind.value for request in self.requests)
        words = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        tokens = sum(request.prompt_tokens for request in self.requests)
        return (
            f"a trace of {len(self.requests)} requests ({words}) in {self.sessions} sessions, {tokens:,} prompt tokens"
        )

    def base_tokens(self, kind: Kind) -> int:
        """Tokens of the beginning that most conversations of this kind have; 0 without one."""
        bases = Counter(
            prompt[0]
            for request, number, prompt in zip(self.requests, self.numbers, self.prompts, strict=True)
            if request.kind is kind and number == 0
        )
        return bases.most_common(1)[0][0][1] if bases else 0

    def _unfold(self) -> None:
        last: dict[str, tuple[Piece, ...]] = {}
        turns: Counter[str] = Counter()
        for index, request in enumerate(self.requests):
            held = last.get(request.conversation, ())
            prompt = (*held[: request.keeps], *request.new)
            if request.n != index or request.keeps > len(held) or len(prompt) < 2:
                raise ConfigError(f"the trace's request {index} does not follow from those before it")
            last[request.conversation] = prompt
            self.prompts.append(prompt)
            self.numbers.append(turns[request.conversation])
            turns[request.conversation] += 1


def read(path: Path) -> Trace:
    """Raises ConfigError that names the file and the line."""
    try:
        first, *lines = path.read_bytes().splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is empty"
        raise ConfigError(f"--trace {path}: cannot be read: {reason}") from None
    if _line(path, 1, Head, first).corral_trace != VERSION:
        raise ConfigError(f"--trace {path}: is of another version than {VERSION}; record it again")
    requests = [_line(path, number, Request, line) for number, line in enumerate(lines, 2)]
    if not requests:
        raise ConfigError(f"--trace {path}: holds no request")
    try:
        return Trace(requests)
    except ConfigError as error:
        raise ConfigError(f"--trace {path}: {error}") from None


def head() -> bytes:
    """The first line of a file."""
    return line_of(Head(corral_trace=VERSION))


def line_of(model: Strict) -> bytes:
    return orjson.dumps(model.model_dump(mode="json")) + b"\n"


def _line(path: Path, number: int, kind: type[LineT], line: bytes) -> LineT:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise ConfigError(f"--trace {path}: line {number}: {where}: {first['msg'].lower()}") from None
