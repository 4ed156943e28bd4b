"""Clients that cost next to nothing: bare sockets, the time of the first byte and of the last, the text.

Owns: the clock of such a request. A client library takes a millisecond or two for one, and on a machine that also runs
the gateway a hundred of them would hide what is measured.
Never: judges a figure.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from urllib.parse import urlsplit

import orjson

TAIL_BYTES = 200
Connection = tuple[asyncio.WriteTransport, "_Incoming"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One request, in seconds of `perf_counter`; `text` is None when it did not end well, `tail` what came last."""

    asked_s: float
    first_s: float
    last_s: float
    text: str | None
    tail: str


class _Incoming(asyncio.Protocol):
    """What comes back on one connection, until the other side closes it."""

    def __init__(self) -> None:
        self.asked_s = self.first_s = self.last_s = 0.0
        self.closed = asyncio.Event()
        self._parts: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.last_s = perf_counter()
        self.first_s = self.first_s or self.last_s
        self._parts.append(data)

    def connection_lost(self, _: Exception | None) -> None:
        self.closed.set()

    def answer(self) -> Answer:
        raw = b"".join(self._parts)
        return Answer(self.asked_s, self.first_s, self.last_s, _text(raw), raw[-TAIL_BYTES:].decode(errors="replace"))


class Clients:
    """Clients of the gateway at `url` that all send `body` to POST /v1/messages."""

    def __init__(self, url: str, body: bytes) -> None:
        self._address = urlsplit(url)
        self._body = body

    async def connect(self) -> Connection:
        """A connection for one request."""
        host, port = self._address.hostname or "", self._address.port or 80
        return await asyncio.get_running_loop().create_connection(_Incoming, host, port)

    async def ask(self, connection: Connection, head: Mapping[str, str]) -> Answer:
        """Send the request with the header fields `head`, and read its answer to the end."""
        transport, incoming = connection
        incoming.asked_s = perf_counter()
        transport.write(self._request(head))
        await incoming.closed.wait()
        return incoming.answer()

    def _request(self, head: Mapping[str, str]) -> bytes:
        fields = {**head, "host": self._address.netloc, "content-length": str(len(self._body)), "connection": "close"}
        lines = ["POST /v1/messages HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        return "\r\n".join(lines).encode() + self._body


def _text(raw: bytes) -> str | None:
    # Each chunk of the transfer holds whole events, so no line of data is torn.
    events = [orjson.loads(line[6:]) for line in raw.splitlines() if line.startswith(b"data: ")]
    if not events or events[-1]["type"] != "message_stop":
        return None
    return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
