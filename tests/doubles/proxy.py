"""A network between two parts of a test, which it may cut, hold up, or lead elsewhere.

Owns: the connections that go through it.
Never: understands what they carry.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

BUFFER_BYTES = 65536
LIMIT_S = 10.0


class Proxy:
    """Carries TCP connections on `port` to `target`, a loopback port. A context manager that ends them."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._cut = False
        self._lost = False
        self._flows: asyncio.Event
        self._old_flows: list[asyncio.Event] = []
        self._links: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()

    @property
    def url(self) -> str:
        """What CORRAL_REDIS_URL takes."""
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self) -> None:
        """Break every connection, and each new one at once, until `mend`."""
        self._do(self._break(refuse=True))

    def hold(self) -> None:
        """Keep every connection and take new ones, but carry nothing until `mend`: a cable that was pulled."""
        self._do(self._stop())

    def lose(self) -> None:
        """As `hold`, but the connections there are say nothing ever more; after `mend` only new ones are carried."""
        self._do(self._stop(for_ever=True))

    def mend(self, target: int | None = None) -> None:
        """Carry again. With a `target`, there, after a break of what led elsewhere."""
        if target is not None:
            self.target = target
            self._do(self._break(refuse=False))
        self._do(self._go_on())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    async def _listen(self) -> None:
        self._flows = asyncio.Event()
        self._flows.set()
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _break(self, *, refuse: bool) -> None:
        self._cut = refuse
        for link in tuple(self._links):
            link.transport.abort()

    async def _stop(self, *, for_ever: bool = False) -> None:
        self._flows.clear()
        self._lost = for_ever

    async def _go_on(self) -> None:
        self._cut = False
        if self._lost:
            self._old_flows.append(self._flows)  # whoever waits for it waits until the end
            self._flows, self._lost = asyncio.Event(), False
        self._flows.set()

    async def _end(self) -> None:
        self._server.close()
        for flows in (self._flows, *self._old_flows):
            flows.set()
        await self._break(refuse=True)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=LIMIT_S)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if self._cut:
                writer.transport.abort()
                return
            self._links.add(writer)
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
            self._links.add(far_writer)
            ways = [self._pump(reader, far_writer), self._pump(far_reader, writer)]
            await asyncio.gather(*ways, return_exceptions=True)
            self._links -= {writer, far_writer}
        writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flows = self._flows
        try:
            while come := await reader.read(BUFFER_BYTES):
                await flows.wait()
                writer.write(come)
                await writer.drain()
        finally:
            writer.transport.abort()
