"""Connections without a time limit would be kept for ever by whoever opens them: each ends by itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from api import connection
from api.connection import Connection

pytestmark = pytest.mark.integration

WAIT_S = 10
FOREVER_S = 600
Open = Callable[[], Any]


class App:
    """Reads the body only of /read; answers /large with more than any buffer holds, and notes how that ends."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(settings=SimpleNamespace(body_timeout_s=0.3))
        self.ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/read":
            while (await receive()).get("more_body"):
                pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/large":
            for _ in range(100):
                await send({"type": "http.response.body", "body": bytes(1_000_000), "more_body": True})
            self.ended.set()
        await send({"type": "http.response.body", "body": b"fine"})


@asynccontextmanager
async def serving(app: App, keep_alive_s: int = FOREVER_S) -> AsyncIterator[int]:
    """The port of a server with our connections; at its end no connection may be left."""
    config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_keep_alive=keep_alive_s)
    config.load()
    config.app = app  # what `api.app` hands over has its state there
    config.loaded_app = app
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for left in list(state.connections):
            left.transport.abort()
        await server.wait_closed()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the other side closes. Raises TimeoutError when it does not."""
    received = b""
    async with asyncio.timeout(WAIT_S):
        with contextlib.suppress(ConnectionError):
            while come := await reader.read(65536):
                received += come
    return received


HEAD = b"POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
STAYS = {
    "a body that never comes": [HEAD % (b"", 1000)],
    "one byte of a body, then nothing": [HEAD % (b"", 1000), b"x"],
    "a line end after the request": [HEAD % (b"read", 0), b"\r\n"],
    "half of the next head": [HEAD % (b"read", 0), b"GET / HTTP/1.1\r\n"],
    "nothing at all": [],
}


@pytest.mark.parametrize("sent", STAYS.values(), ids=STAYS)
async def test_a_client_that_sends_no_more_is_let_go(sent: list[bytes]) -> None:
    async with serving(App()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in sent:
            writer.write(part)
            if part.startswith(b"POST"):
                async with asyncio.timeout(WAIT_S):
                    await reader.readuntil(b"fine\r\n0\r\n\r\n")
        await until_closed(reader)
        writer.close()


async def test_a_body_that_comes_after_its_answer_leaves_the_connection_usable() -> None:
    async with serving(App()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD % (b"", 1000))
        async with asyncio.timeout(WAIT_S):
            await reader.readuntil(b"fine\r\n0\r\n\r\n")
            writer.write(bytes(1000) + HEAD % (b"read", 4) + b"body")
            await reader.readuntil(b"fine\r\n0\r\n\r\n")
        writer.close()


async def test_a_client_that_does_not_read_its_answer_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_LIMIT_S", 0.2)
    app = App()
    async with serving(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(WAIT_S):
            await app.ended.wait()
        assert len(await until_closed(reader)) < 100_000_000
        writer.close()


async def test_a_client_that_reads_slowly_gets_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_LIMIT_S", 5)
    async with serving(App(), keep_alive_s=0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        received = 0
        async with asyncio.timeout(60):
            while come := await reader.read(2**20):
                received += len(come)
                await asyncio.sleep(0)
        assert received > 100_000_000
        writer.close()
