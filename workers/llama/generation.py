"""One streamed answer of llama-server.

Owns: the answer's own connection, its deadlines, cancelling it, and the translation of the engine's errors.
It uses the standard library's `http.client`, which reads a chunk in a third of httpx's time, and whose socket can be
shut down from another thread: that is how a running answer is cancelled. Each answer has a connection of its own:
closing it is what frees the slot, and a fresh one cannot meet the engine's close of a kept one.
Never: retries, and never two requests on one connection.
"""

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
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
from workers.llama.parse import AnswerRules, ChunkParser, End, Prompt, refusal
from workers.llama.pulse import Pulse

CHAT_PATH = "/v1/chat/completions"
READ_BYTES = 65536
ERROR_BODY_BYTES = 65536
LOADING_STATUS = 503
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
        return replace(
            self,
            client_first_token_s=(limits.first_token_s or inf) - waited_s,
            client_between_tokens_s=limits.between_tokens_s or inf,
        )


class Generation:
    """One answer. Leaving the `with` block closes the connection, which cancels what still runs on the engine."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        headers: dict[str, str],
        body: bytes,
        rules: AnswerRules,
        deadlines: Deadlines,
        pulse: Pulse,
    ) -> None:
        self._connection = connection
        self._headers = headers
        self._body = body
        self._parser = ChunkParser(rules)
        self._deadlines = deadlines
        self._clock = _Clock(deadlines)
        self._pulse = pulse
        self._heard = False
        self._lock = threading.Lock()
        self._cancelled = False
        self._socket: socket.socket | None = None
        self._answer: http.client.HTTPResponse | None = None

    def __enter__(self) -> "Generation":
        self._pulse.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self._pulse.end(heard=self._heard)

    def cancel(self) -> None:
        """From any thread, at any time: the iteration raises Cancelled at once, and the engine stops."""
        with self._lock:
            self._cancelled = True
            if self._socket is not None:
                _shut_down(self._socket)

    def __iter__(self) -> Iterator[Event]:
        """The answer's events; the last one is End.

        Raises Cancelled, PromptTooLong, EngineLost, EngineRefused, EngineTimeout, DeadlinePassed
        or TooSlow.
        """
        try:
            yield from self._events()
        except (OSError, http.client.HTTPException, EngineError) as error:
            # Whatever breaks after a cancel broke because of it: the socket was shut down under the reader.
            if self._cancelled:
                raise Cancelled("the request was cancelled") from None
            if isinstance(error, EngineError):
                raise
            if isinstance(error, TimeoutError):
                raise self._clock.passed() from None
            raise lost() from error

    def _events(self) -> Iterator[Event]:
        clock = self._clock = _Clock(self._deadlines)
        self._connect()
        response = self._response(clock)
        for line in _data_lines(response, self._set_timeout, clock):
            self._refuse_if_cancelled()
            self._pulse.beat()
            self._heard = True
            if line == b"[DONE]":
                yield self._parser.end()
                return
            yield from self._parser.feed(_parsed(line))
            if self._parser.stopped:
                self._close()
                yield self._parser.end()
                return
            clock.progressed(generating=self._parser.generating)
        raise EngineLost("the engine ended its answer half way")

    def _connect(self) -> None:
        self._refuse_if_cancelled()
        self._connection.connect()
        with self._lock:
            self._socket = self._connection.sock
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._refuse_if_cancelled()

    def _response(self, clock: "_Clock") -> http.client.HTTPResponse:
        """Headers come with the first progress, so waiting for them is waiting for the slot."""
        self._set_timeout(clock.remaining_s())
        self._connection.request("POST", CHAT_PATH, body=self._body, headers=self._headers)
        self._answer = response = self._connection.getresponse()
        if response.status != http.client.OK:
            raise translated(response.status, response.read(ERROR_BODY_BYTES))
        return response

    def _set_timeout(self, seconds: float) -> None:
        if self._socket is not None:
            self._socket.settimeout(seconds)

    def _refuse_if_cancelled(self) -> None:
        if self._cancelled:
            raise Cancelled("the request was cancelled")

    def _close(self) -> None:
        with self._lock:
            if self._socket is not None:
                _shut_down(self._socket)
            self._socket = None
        self._connection.close()
        if self._answer is not None:
            self._answer.close()  # it holds the socket open, whatever else still refers to it


class _Clock:
    """The deadlines of one answer on this machine's monotonic clock. Only chunks move it on, comment lines do not."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        now = time.monotonic()
        self._last_moment = now + deadlines.answer_s
        self._silent_until = now + deadlines.first_token_s
        self._client_waits_until = now + deadlines.client_first_token_s

    def progressed(self, *, generating: bool) -> None:
        now = time.monotonic()
        allowed = self._deadlines.between_tokens_s if generating else self._deadlines.first_token_s
        self._silent_until = now + allowed
        if generating:
            self._client_waits_until = now + self._deadlines.client_between_tokens_s

    def remaining_s(self) -> float:
        """Time left to the next deadline, above zero. Raises EngineTimeout, DeadlinePassed or TooSlow when it has
        passed."""
        remaining = min(self._silent_until, self._last_moment, self._client_waits_until) - time.monotonic()
        if remaining <= 0:
            raise self.passed()
        return remaining

    def passed(self) -> CorralError:
        """What it means that nothing came in time: only the engine's silence is worth another attempt."""
        now = time.monotonic() + TIMER_SLACK_S
        if self._client_waits_until <= now:
            return TooSlow("the next token did not come in the time that the request allows; ask again")
        if self._last_moment <= now:
            return DeadlinePassed("the answer took longer than allowed")
        return EngineTimeout("the engine was silent for too long; ask again")


def _data_lines(
    response: http.client.HTTPResponse, set_timeout: Callable[[float], None], clock: _Clock
) -> Iterator[bytes]:
    """The payloads of the event stream's data lines. An `error:` line of older engines comes as an error chunk."""
    pending = b""
    while True:
        set_timeout(clock.remaining_s())
        received = response.read1(READ_BYTES)
        if not received:
            return
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                yield line[6:]
            elif line.startswith(b"error: "):
                yield b'{"error":' + line[7:] + b"}"


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


def _shut_down(connected: socket.socket) -> None:
    """Wakes a reader in another thread, which a mere close would leave blocked."""
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
