"""A trace of live traffic: sizes, gaps, fan-out and salted fingerprints. Not a word of a prompt, an answer or a name.

    corral bench record --out agents.jsonl --for 600      and later: corral bench agents --url URL --trace agents.jsonl

Owns: the command line, the file, and listening to every process of the gateway.
Never: changes what the gateway does; a word (it is never sent one).
"""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self

import httpx
import orjson
import typer
from rich.console import Console
from rich.status import Status

from infra.bench.command import DEFAULT_URL, run
from infra.bench.shaping import Shaping
from infra.bench.trace import head, line_of
from infra.errors import ConfigError, EngineError

PATH, SALT_HEADER, SALT_BYTES = "/v1/shapes", "x-corral-salt", 16
SILENCE_S = 15.0  # a gateway says each second that it is there
TRIES = 64  # the kernel gives a connection to any of the processes


def main(
    out: Annotated[Path, typer.Option("--out", help="The file to write; it must not be there yet.")],
    url: Annotated[
        str, typer.Option(help="A Corral that runs, as http://HOST:PORT; none: that of these settings.")
    ] = DEFAULT_URL,
    key: Annotated[str, typer.Option(help="Its key, if it wants one.")] = "",
    for_s: Annotated[float, typer.Option("--for", min=0, help="Seconds; 0: until Ctrl-C.")] = 0.0,
    requests: Annotated[int, typer.Option(min=0, help="End after so many requests; 0: do not count.")] = 0,
) -> None:
    """Record an agent trace from live traffic, without a word of it."""
    try:
        file = out.open("xb")
    except OSError as error:
        raise ConfigError(f"--out {out}: {(error.strerror or 'cannot be written').lower()}") from None
    with file:
        recording = Recording(file, requests)
        try:
            asyncio.run(_record(recording, url.rstrip("/"), key, for_s, out))
        except KeyboardInterrupt:
            pass  # as its user ends it
        finally:
            if recording.count:
                print(f"{recording.told()}; recorded without a word of them: {out}")
            else:
                out.unlink()
    if not recording.count:
        raise EngineError(f"no request was answered meanwhile, so {out} is not written")


async def _record(recording: "Recording", url: str, key: str, for_s: float, out: Path) -> None:
    async with Listening(url, key) as listening:
        print(f"recording {url} into {out}" + (f" for {for_s:g} s" if for_s else " until Ctrl-C"), flush=True)
        if listening.missed:
            print(f"warning: {listening.missed} of its API processes were not reached", file=sys.stderr)
        with suppress(TimeoutError):
            async with asyncio.timeout(for_s or None):
                await recording.run(listening)


class Recording:
    """One recording into `file`, of `most` requests at most (0: any number)."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file, self._most = file, most
        self._shaping: Shaping | None = None
        self._conversations: set[str] = set()
        self._dropped: dict[str, int] = {}

    @property
    def count(self) -> int:
        """Requests in the file so far."""
        return self._shaping.count if self._shaping else 0

    def told(self) -> str:
        """What was recorded, in words."""
        words = f"{self.count} requests of {len(self._conversations)} conversations"
        if self._shaping and self._shaping.left_out:
            words += f"; {self._shaping.left_out} that got no answer are left out"
        lost = sum(self._dropped.values())
        return words + (f"; {lost} came faster than they were read and are lost" if lost else "")

    async def run(self, listening: "Listening") -> None:
        """Write what is heard until `most` are there. Raises EngineError when the gateway leaves."""
        self._shaping = Shaping(listening.began_s)
        self._file.write(head())
        self._file.flush()  # whoever looks sees that it has begun
        with Status("", console=Console(stderr=True, highlight=False, markup=False)) as status:
            async for api, shape in listening.shapes():
                self._dropped[api] = shape["dropped"]
                if (request := self._shaping.request(shape)) is not None:
                    self._conversations.add(request.conversation)
                    self._file.write(line_of(request))
                    self._file.flush()
                status.update(f"{self.told()}; Ctrl-C ends the recording")
                if self._most and self.count >= self._most:
                    return


class Listening:
    """The streams of all processes of one gateway, with one salt. Entered, it is connected to them."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        headers = {SALT_HEADER: secrets.token_hex(SALT_BYTES)} | ({"x-api-key": key} if key else {})
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=SILENCE_S, limits=limits, trust_env=False)
        self._open = AsyncExitStack()
        self._lines: dict[str, AsyncIterator[str]] = {}
        self.began_s = 0.0
        self.processes = 1

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(self._http)
        for _ in range(TRIES):
            await self._connect()
            if len(self._lines) >= self.processes:
                break
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @property
    def missed(self) -> int:
        """Processes that no connection reached."""
        return self.processes - len(self._lines)

    async def shapes(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Shapes as they come, each with the process that told it. Raises EngineError when one of them leaves."""
        heard: asyncio.Queue[tuple[str, str | None]] = asyncio.Queue()
        tasks = [asyncio.create_task(_read(api, lines, heard)) for api, lines in self._lines.items()]
        try:
            while True:
                api, line = await heard.get()
                if line is None:
                    raise EngineError(f"{self._url}: the gateway ended the recording; is it being stopped?")
                yield api, orjson.loads(line)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _connect(self) -> None:
        """One more stream; one of a process that is listened to already is closed again. Raises ConfigError."""
        try:
            async with AsyncExitStack() as attempt:
                response = await attempt.enter_async_context(self._http.stream("GET", PATH))
                if response.status_code != httpx.codes.OK:
                    raise ConfigError(_why(self._url, response.status_code))
                lines = _data(response)
                first = orjson.loads(await anext(lines))
                if first["api"] not in self._lines:
                    self.began_s, self.processes = self.began_s or first["now_s"], first["apis"]
                    self._lines[first["api"]] = lines
                    self._open.push_async_exit(attempt.pop_all())
        except (httpx.HTTPError, httpx.InvalidURL, StopAsyncIteration) as error:
            raise ConfigError(f"{self._url}: nobody answers there ({error}); is it started?") from None


async def _read(api: str, lines: AsyncIterator[str], heard: "asyncio.Queue[tuple[str, str | None]]") -> None:
    """Pass on the lines of one stream, and None at its end, however it ends."""
    try:
        async for line in lines:
            heard.put_nowait((api, line))
    except httpx.HTTPError:
        pass
    heard.put_nowait((api, None))


async def _data(response: httpx.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")


def _why(url: str, status: int) -> str:
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return f"{url}: wants a key that it knows: give --key"
    if status == httpx.codes.SERVICE_UNAVAILABLE:
        return f"{url}: takes no further recording; end another one"
    return f"{url}: tells no shapes (status {status}); is it a Corral of this version?"


if __name__ == "__main__":
    sys.exit(run(main))
