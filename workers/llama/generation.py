"""One streamed answer of llama-server.

Owns: its deadlines, how often it is read, cancelling it, and the translation of the engine's errors.
Never: retries, and never two requests on one connection (`exchange`).

A fast engine gives a token each millisecond or two. To wake for each costs more than the token is worth, so between two
reads the answer rests a little, and takes all that has come at once.
"""

import http.client
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from time import monotonic, sleep
from types import TracebackType
from typing import Any

import orjson

from infra.errors import (
    Cancelled,
    CorralError,
    DeadlinePassed,
    EngineError,
    EngineLost,
    EngineTimeout,
    PromptTooLong,
    TooSlow,
)
from scheduler.contract import Limits, TextDelta, ThinkingDelta, ToolCall
from workers.llama.exchange import Exchange, HttpParserError
from workers.llama.parse import AnswerRules, ChunkParser, End, Prompt, refusal
from workers.llama.pulse import Pulse

CHAT_PATH = "/v1/chat/completions"
CONNECT_TIMEOUT_S = 5.0
ERROR_BODY_BYTES = 65536
LOADING_STATUS = 503
DONE = b"[DONE]"
LONGEST_LINE_BYTES = 8 * 2**20
FIRST_REST = 0.125  # of the longest; it grows to that as the answer does
TIMER_SLACK_S = 0.005  # a socket may give up a little early

Event = Prompt | TextDelta | ThinkingDelta | ToolCall | End


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Longest silence before the first token and between two, and longest answer in all, in seconds.

    The client's own limits come on top: the first token within so long from now, progress or not, and between two.
    """

    first_token_s: float
    between_tokens_s: float
    answer_s: float
    client_first_token_s: float = inf
    client_between_tokens_s: float = inf

    def for_client(self, limits: Limits, waited_s: float) -> "Deadlines":
        """With the client's limits, of which `waited_s` are over."""
        if limits.first_token_s is None and limits.between_tokens_s is None:
            return self
        return replace(
            self,
            client_first_token_s=(limits.first_token_s or inf) - waited_s,
            client_between_tokens_s=limits.between_tokens_s or inf,
        )


def _nothing() -> None:
    """Nobody wants to know."""


class Generation:
    """One answer. Leaving the `with` block closes the connection, which cancels what still runs on the engine."""

    def __init__(
        self,
        exchange: Exchange,
        headers: dict[str, str],
        body: bytes,
        rules: AnswerRules,
        deadlines: Deadlines,
        pulse: Pulse,
        rest_s: float = 0.0,
    ) -> None:
        """Once its tokens come, it rests between two reads, in the end for `rest_s`."""
        self._exchange = exchange
        self._headers = headers
        self._body = body
        self._parser = ChunkParser(rules)
        self._deadlines = deadlines
        self._clock = _Clock(deadlines)
        self._pulse = pulse
        self._rest_s = rest_s
        self._first_token_s: float | None = None
        self._heard = False
        self._cancelled = False

    def __enter__(self) -> "Generation":
        self._pulse.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exchange.close()
        self._pulse.end(heard=self._heard)

    def cancel(self) -> None:
        """From any thread, at any time: the engine stops at once, and the iteration raises Cancelled, after its rest at
        most."""
        self._cancelled = True  # first: whoever connects just now looks at it afterwards
        self._exchange.shut_down()

    def __iter__(self) -> Iterator[Event]:
        """The answer's events, one by one. Raises as `together`."""
        for come in self.together():
            yield from come

    def together(self, asked: Callable[[], None] = _nothing) -> Iterator[list[Event]]:
        """The answer's events in order, in lists of those that have come together; the very last one is End. `asked` is
        called when the request is on its way.

        Raises Cancelled, PromptTooLong, EngineLost, EngineRefused, EngineTimeout, DeadlinePassed
        or TooSlow; what came ahead of an error has been given out.
        """
        try:
            yield from self._events(asked)
        except (OSError, HttpParserError, EngineError) as error:
            # Whatever breaks after a cancel broke because of it: the socket was shut down under the reader.
            if self._cancelled:
                raise Cancelled("the request was cancelled") from None
            if isinstance(error, EngineError):
                raise
            if isinstance(error, TimeoutError):
                raise self._clock.passed() from None
            raise lost() from error

    def _events(self, asked: Callable[[], None]) -> Iterator[list[Event]]:
        clock = self._clock = _Clock(self._deadlines)
        self._ask(clock, asked)
        lines = _DataLines()
        while received := self._exchange.read(clock.remaining_s):
            read_s = monotonic()
            self._refuse_if_cancelled()
            found = lines.feed(received)
            if found:
                self._pulse.beat()
                self._heard = True
            come: list[Event] = []
            try:
                over = self._feed(found, come)
            finally:  # what came ahead of an error, too
                if come:
                    yield come
            if over:
                return
            if found:
                clock.progressed(generating=self._parser.generating)
            self._rest(read_s)
        raise EngineLost("the engine ended its answer half way")

    def _feed(self, lines: list[bytes], come: list[Event]) -> bool:
        """Add what the lines tell to `come`; whether the answer is over, and its connection given back."""
        for line in lines:
            if line != DONE:
                come += self._parser.feed(_parsed(line))
            if line == DONE or self._parser.stopped:
                self._exchange.close()
                come.append(self._parser.end())
                return True
        return False

    def _rest(self, read_s: float) -> None:
        """Not ahead of the first token, nor once the engine has said that there are no more."""
        if self._parser.generating and not self._parser.finished:
            self._first_token_s = self._first_token_s or read_s
            # The end of a short answer is not to wait for a long rest.
            rest_s = min(self._rest_s, max(self._rest_s * FIRST_REST, read_s - self._first_token_s))
            left_s = self._clock.remaining_s() / 2  # what came meanwhile must still be read in time
            sleep(max(0.0, min(read_s + rest_s - monotonic(), left_s)))
            self._refuse_if_cancelled()

    def _ask(self, clock: "_Clock", asked: Callable[[], None]) -> None:
        """Headers come with the first progress, so waiting for them is waiting for the slot."""
        self._refuse_if_cancelled()
        self._exchange.connect(CONNECT_TIMEOUT_S)
        self._refuse_if_cancelled()
        self._exchange.ask(CHAT_PATH, self._headers, self._body, clock.remaining_s())
        asked()
        status = self._exchange.status(clock.remaining_s)
        if status != http.client.OK:
            raise translated(status, self._whole(clock))

    def _whole(self, clock: "_Clock") -> bytes:
        body = b""
        while len(body) < ERROR_BODY_BYTES and (received := self._exchange.read(clock.remaining_s)):
            body += received
        return body

    def _refuse_if_cancelled(self) -> None:
        if self._cancelled:
            raise Cancelled("the request was cancelled")


class _Clock:
    """The deadlines of one answer on this machine's monotonic clock. Only chunks move it on, comment lines do not."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        now = monotonic()
        self._last_moment = now + deadlines.answer_s
        self._silent_until = now + deadlines.first_token_s
        self._client_waits_until = now + deadlines.client_first_token_s

    def progressed(self, *, generating: bool) -> None:
        now = monotonic()
        allowed = self._deadlines.between_tokens_s if generating else self._deadlines.first_token_s
        self._silent_until = now + allowed
        if generating:
            self._client_waits_until = now + self._deadlines.client_between_tokens_s

    def remaining_s(self) -> float:
        """Time left to the next deadline, above zero. Raises EngineTimeout, DeadlinePassed or TooSlow when it has
        passed."""
        remaining = min(self._silent_until, self._last_moment, self._client_waits_until) - monotonic()
        if remaining <= 0:
            raise self.passed()
        return remaining

    def passed(self) -> CorralError:
        """What it means that nothing came in time: only the engine's silence is worth another attempt."""
        now = monotonic() + TIMER_SLACK_S
        if self._client_waits_until <= now:
            return TooSlow("the next token did not come in the time that the request allows; ask again")
        if self._last_moment <= now:
            return DeadlinePassed("the answer took longer than allowed")
        return EngineTimeout("the engine was silent for too long; ask again")


class _DataLines:
    """The payloads of the event stream's data lines. An `error:` line of older engines comes as an error chunk."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, received: bytes) -> list[bytes]:
        if len(self._pending) > LONGEST_LINE_BYTES:  # at the next read, when what came ahead of it was given out
            raise EngineLost("the engine sent a line without an end")
        *lines, self._pending = (self._pending + received).split(b"\n")
        found = []
        for line in lines:
            if line.startswith(b"data: "):
                found.append(line[6:])
            elif line.startswith(b"error: "):
                found.append(b'{"error":' + line[7:] + b"}")
        return found


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        chunk: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise EngineLost("the engine sent something that is no JSON") from None
    return chunk


def translated(status: int, body: bytes) -> CorralError:
    """The engine's error answer as one of ours."""
    try:
        error = orjson.loads(body)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        error = {"message": f"HTTP status {status}"}
    if not isinstance(error, dict):
        error = {"message": str(error)}
    if error.get("type") == "exceed_context_size_error":
        return PromptTooLong(int(error.get("n_prompt_tokens", 0)), int(error.get("n_ctx", 0)))
    if status == LOADING_STATUS:
        return EngineLost("the engine is still loading its model")
    return refusal({**error, "code": status})


def lost() -> EngineLost:
    """For a client's eyes too, after the last attempt: without the names of a library's classes."""
    return EngineLost("the connection to the engine broke; it has ended, or is about to be started again")
