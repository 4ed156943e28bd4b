"""One HTTP exchange with the engine, over a connection of its own.

Owns: connecting, asking, giving out all that has come of the answer at once, and ending it from another thread.
Never: deadlines (whoever reads says for how long), the meaning of a byte of the answer's body.

A token loop reads thousands of small chunks: httptools takes as many as have come from one read, where `http.client`
takes three calls for each. Each answer has a connection of its own: closing it is what frees the engine's slot, and a
fresh one cannot meet the engine's close of a kept one.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping

from httptools import HttpParserError, HttpResponseParser

__all__ = ["Exchange", "HttpParserError"]

READ_BYTES = 65536
FRAMES = (b"content-length", b"transfer-encoding")
OK = 200  # below it an answer says that the answer is still to come


class Exchange:
    """One request and its answer; for one thread, but for `shut_down`. What breaks is an OSError or HttpParserError."""

    def __init__(self, host: str, port: int) -> None:
        """`host` is an IPv4 address."""
        self._address = (host, port)
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._come = _Come()
        self._parser = HttpResponseParser(self._come)
        self._broken: HttpParserError | None = None

    def connect(self, timeout_s: float) -> None:
        """Raises OSError."""
        # Its engine is on this machine, by number: `create_connection` would look that up as if it were a name.
        connecting = socket.socket(socket.AF_INET)
        with self._lock:
            self._socket = connecting  # first: whatever comes of it, `close` gives it back
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connecting.settimeout(timeout_s)
        connecting.connect(self._address)

    def ask(self, path: str, headers: Mapping[str, str], body: bytes, left_s: float) -> None:
        """Send the request, for `left_s` seconds at most."""
        host, port = self._address
        head = {"Host": f"{host}:{port}", "Content-Length": str(len(body)), **headers}
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
        connected = self._connected()
        connected.settimeout(left_s)
        connected.sendall("\r\n".join(lines).encode("latin-1") + body)

    def status(self, left_s: Callable[[], float]) -> int:
        """The answer's status, once its head has come; `left_s` is asked before each wait how long it may be."""
        while not self._has_head():
            self._receive(left_s())
        return int(self._parser.get_status_code())

    def read(self, left_s: Callable[[], float]) -> bytes:
        """All of the body that has come since the last call, waiting for the first of it; b"" at its end."""
        while not self._come.body and not self._is_complete():
            self._receive(left_s())
        return self._come.take()

    def shut_down(self) -> None:
        """From any thread: wake the reader, which a mere close would leave blocked."""
        with self._lock:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the connection back; the engine stops working for it."""
        self.shut_down()
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionError("not connected")
        return self._socket

    def _has_head(self) -> bool:
        come = self._come
        return 0 < come.heads == come.begun and int(self._parser.get_status_code()) >= OK

    def _is_complete(self) -> bool:
        return self._has_head() and self._come.ends == self._come.heads

    def _receive(self, left_s: float) -> None:
        if self._broken is not None:
            raise self._broken
        connected = self._connected()
        connected.settimeout(left_s)
        received = connected.recv(READ_BYTES)
        if not received:
            if not self._has_head() or self._come.framed:
                raise ConnectionError("closed before its end")
            self._come.ends += 1  # a body of no told length ends with its connection
            return
        try:
            self._parser.feed_data(received)
        except HttpParserError as error:
            self._broken = error  # raised when what came ahead of it was given out


class _Come:
    """What the parser has found: its callbacks. Apart from `Exchange`, or the two would keep each other alive."""

    def __init__(self) -> None:
        self.begun = 0
        self.heads = 0
        self.ends = 0
        self.framed = False
        self.body: list[bytes] = []

    def take(self) -> bytes:
        body, self.body = self.body, []
        return b"".join(body)

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_header(self, name: bytes, _: bytes) -> None:
        self.framed = self.framed or name.lower() in FRAMES

    def on_headers_complete(self) -> None:
        self.heads += 1

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.ends += 1
