"""One connection, within bounds.

Owns: the limits on the size of a request's head and on the time it takes to arrive, the answer to what is no HTTP, and
the end of clients that send no more of a body nobody waits for, or that read no more of their answer. uvicorn would
wait for all of them for ever, and keep headers of any size.
Never: a body that is waited for (`receiving`), a route.
"""

import asyncio
import os
from http import HTTPStatus
from itertools import chain
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.errors import reply_for
from infra.errors import BadRequest

HEAD_LIMIT_BYTES = 64 * 1024
# A client that is still sending would lose the answer if its connection was reset at once.
LINGER_S = 1.0
UNREAD_LIMIT_S = 120.0  # a client that takes nothing of its answer for so long has gone


class Connection(HttpToolsProtocol):
    """One connection. A head may take as long as a body, and so may what follows an answer that is complete."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._timeout_s: float = self.config.app.state.settings.body_timeout_s  # type: ignore[union-attr]
        self._timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._status = HTTPStatus.BAD_REQUEST
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._timer is not None:  # the head has not ended
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT_BYTES:
                self._refuse_size()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        if len(self.url) + sum(map(len, chain.from_iterable(self.headers))) > HEAD_LIMIT_BYTES:
            self._refuse_size()
            raise ValueError("the head is too large")  # ends the parsing; the answer has gone out
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_idle_timer()
        # uvicorn's own timer ends with the first byte that comes, be it of a body that nobody waits for.
        if self.cycle.response_complete:
            self._idle_timer = self.loop.call_later(self._timeout_s, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_unread_timer()
        self._unread_timer = self.loop.call_later(UNREAD_LIMIT_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_unread_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for what is no HTTP, and by the limits here. Only the first call of a connection speaks."""
        if self._refused:
            return
        self._refused = True
        self._stop_timer()
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self.cycle.response_started:
            self.transport.close()
            return
        request_id = f"req_{os.urandom(16).hex()}"
        reply = reply_for(BadRequest(msg), request_id)
        self._write(orjson.dumps(reply.body), {**reply.headers, "request-id": request_id})
        if answering:
            self.transport.close()
        else:
            self.loop.call_later(LINGER_S, self.transport.close)

    def _write(self, body: bytes, headers: dict[str, str]) -> None:
        all_headers = {
            **headers,
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        lines = [f"HTTP/1.1 {self._status.value} {self._status.phrase}", *(f"{n}: {v}" for n, v in all_headers.items())]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)

    def _refuse_size(self) -> None:
        self._status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self.send_400_response(f"headers: larger than {HEAD_LIMIT_BYTES} bytes in all")

    def _expect_head(self) -> None:
        self._stop_timer()
        self._head_bytes = 0
        self._timer = self.loop.call_later(self._timeout_s, self._too_slow)

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _stop_timer(self) -> None:
        self._stop_idle_timer()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        if self._head_bytes == 0:  # nothing was asked; a connection held in reserve
            self.transport.close()
            return
        self._status = HTTPStatus.REQUEST_TIMEOUT
        self.send_400_response(f"headers: did not arrive within {self._timeout_s:g} s")
