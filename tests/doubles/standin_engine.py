"""A stand-in for llama-server: its flags, its routes and its shapes, at speeds that a test chooses.

Owns: the HTTP side (keep-alive, streams, hang-ups, errors) and the routes. The standard library only, so that it
starts in a moment. What it says is in `standin_script`, its slots and pace are in `standin_slots`.
Never: a model. Tokens are words.

SIGUSR1 breaks all of its connections. SIGUSR2 has the answers of this moment said to their end at once.

Run as `python -m tests.doubles.standin_engine -m FILE --port N -np SLOTS -c TOKENS`; other flags are taken and ignored.
Key from LLAMA_API_KEY or --api-key. Variables, all optional:
    STANDIN_DECODE_TOKENS_PER_S 500, STANDIN_PREFILL_TOKENS_PER_S 50000   pace of each slot
    STANDIN_LOAD_S 0            503 on every route for this long
    STANDIN_DIE_WHILE_LOADING N the first N starts end with status 1 (needs STANDIN_LOG, which counts them)
    STANDIN_BYTES_PER_TOKEN 0   what a token takes in a slot's file; 0: slots cannot be saved
    STANDIN_SAVE_BYTES_PER_S 1e9, STANDIN_RESTORE_BYTES_PER_S 2e9         pace of slot files; all else stands still
    STANDIN_RESTORED_IS_USELESS 1   a restored slot holds nothing of use
    STANDIN_NOTE_PROMPTS 1      the log keeps each request's rendered prompt too
    STANDIN_LOG FILE            JSON lines: {"event": "start", ...} and one {"event": "request", ...} per generation
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
import weakref
import zlib
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from tests.doubles.standin_answer import Answering
from tests.doubles.standin_files import Disk, act, complete
from tests.doubles.standin_http import Reader, head_of, keys_of, slot_of, torn
from tests.doubles.standin_script import JsonObject, render, words
from tests.doubles.standin_slots import Refusal, SlotTable

KEEP_ALIVE_REQUESTS = 100  # llama-server closes a kept connection after as many, without a word
KEEP_ALIVE_S = 5
OTHER_ROUTES = {"POST /v1/chat/completions", "POST /completion"}
NO_MESSAGES = Refusal(400, "Expected 'messages' to be an array", "invalid_request_error")
CARD_IS_FULL = """\
CUDA error: out of memory
  current device: 0, in function alloc at ggml-cuda.cu:479
  cuMemCreate(&handle, reserve_size, &prop, 0)
ggml-cuda.cu:98: CUDA error
"""
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 503: "Service Unavailable"}


class Engine:
    """The routes over one slot table."""

    def __init__(self, options: argparse.Namespace, environment: dict[str, str]) -> None:
        self.model = options.model or ""
        self.alias = options.alias or Path(self.model).name
        self.key = options.api_key or environment.get("LLAMA_API_KEY", "")
        self.log = Path(environment["STANDIN_LOG"]) if environment.get("STANDIN_LOG") else None
        self.note_prompts = bool(environment.get("STANDIN_NOTE_PROMPTS"))
        self.disk = Disk.read(options.slot_save_path, environment)
        self.ready_at = time.monotonic() + float(environment.get("STANDIN_LOAD_S", "0"))
        self.table = SlotTable(
            options.parallel,
            options.ctx_size // options.parallel,
            float(environment.get("STANDIN_PREFILL_TOKENS_PER_S", "50000")),
            float(environment.get("STANDIN_DECODE_TOKENS_PER_S", "500")),
        )
        self.routes: dict[str, Callable[[JsonObject], Any]] = {
            "GET /props": lambda _: self.props(),
            "GET /slots": lambda _: self.table.describe(),
            "GET /health": lambda _: {"status": "ok"},
            "GET /metrics": lambda _: self.table.metrics(),
            "GET /v1/models": lambda _: {"object": "list", "data": [{"id": self.alias, "object": "model"}]},
            "POST /tokenize": lambda body: {"tokens": [zlib.crc32(w.encode()) for w in words(body["content"])]},
            "POST /apply-template": lambda body: {"prompt": render(body)},
            "POST /v1/chat/completions/input_tokens": lambda body: {
                "input_tokens": len(words(render(body))),
                "object": "response.input_tokens",
            },
        }

    def note(self, event: str, **fields: object) -> None:
        """Write one line to the log, if a log is wanted."""
        if self.log is not None:
            with suppress(OSError), self.log.open("a", encoding="utf-8") as file:  # a disk may be full
                file.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")

    def starts(self) -> int:
        """How often an engine with this log has been started."""
        if self.log is None or not self.log.exists():
            return 0
        return self.log.read_text(encoding="utf-8").count('"event": "start"')

    def props(self) -> JsonObject:
        return {
            "default_generation_settings": {"params": {}, "n_ctx": self.table.n_ctx},
            "total_slots": len(self.table.slots),
            "model_alias": self.alias,
            "model_path": self.model,
            "modalities": {"vision": False, "video": False, "audio": False},
            "chat_template": "{{ messages }}",
            "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True, "supports_system_role": True},
            "build_info": "b0-standin",
        }

    def refusal(self, method: str, path: str, headers: dict[str, str]) -> Refusal | None:
        """Why this request is not served at all: wrong key, still loading."""
        if path != "/health" and self.key and self.key not in keys_of(headers):
            return Refusal(401, "Invalid API Key", "authentication_error")
        if time.monotonic() < self.ready_at:
            return Refusal(503, "Loading model", "unavailable_error")
        if f"{method} {path}" not in {*self.routes, *OTHER_ROUTES} and not (method == "POST" and slot_of(path)):
            return Refusal(404, "File Not Found", "not_found_error")
        return None

    async def tell(self, method: str, path: str, query: str, body: JsonObject) -> object:
        """What a route but that of answers says, or a Refusal."""
        if method == "POST" and path.startswith("/v1/chat") and not isinstance(body.get("messages"), list):
            return NO_MESSAGES
        if path == "/slots" and self.table.frozen:
            await asyncio.Event().wait()
        number = slot_of(path)
        if not number and path != "/completion":
            return self.routes[f"{method} {path}"](body)
        action = parse_qs(query).get("action", [""])[0]
        self.note("slot begins", route=path, action=action, file=body.get("filename"))
        told = await (act(self.table, self.disk, number, action, body) if number else complete(self.table, body))
        moved = {} if isinstance(told, Refusal) else told
        tokens = next((moved[name] for name in ("n_saved", "n_restored", "n_erased") if name in moved), None)
        self.note("slot", route=path, action=action, file=body.get("filename"), tokens=tokens)
        return told


class Connection:
    """One client's connection: requests in, answers out, one after the other."""

    def __init__(self, engine: Engine, reader: Reader, writer: asyncio.StreamWriter) -> None:
        self.engine = engine
        self.reader = reader
        self.writer = writer
        self.streaming = False

    async def serve(self) -> None:
        """Answer until the client leaves, errs, or has had its hundred requests."""
        with suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            for _ in range(KEEP_ALIVE_REQUESTS):
                async with asyncio.timeout(KEEP_ALIVE_S):
                    method, target, headers = head_of(await self.reader.readuntil(b"\r\n\r\n"))
                raw = await self.reader.readexactly(int(headers.get("content-length", "0")))
                if not await self.answer(method, target, headers, raw):
                    break
        self.writer.close()

    async def answer(self, method: str, target: str, headers: dict[str, str], raw: bytes) -> bool:
        """Serve one request; False closes the connection."""
        path, _, query = target.partition("?")
        refusal = self.engine.refusal(method, path, headers)
        if refusal is not None:
            return await self.refuse(refusal)
        try:
            body = json.loads(raw or b"{}")
            if path == "/v1/chat/completions":
                return await self.generate(body, headers)
            told = await self.engine.tell(method, path, query, body)
        except (ValueError, KeyError, TypeError) as error:
            told = Refusal(400, f"[parse_error] {error}", "invalid_request_error")
        return await self.refuse(told) if isinstance(told, Refusal) else await self.whole(told)

    async def generate(self, body: JsonObject, headers: dict[str, str]) -> bool:
        """Run an answer until it is done or the client hangs up, whichever comes first."""
        if not isinstance(body.get("messages"), list):
            return await self.refuse(NO_MESSAGES)
        self.streaming = False
        answering = Answering(self.engine.table, body, self.engine.alias)
        work = asyncio.ensure_future(self._stream(answering) if body.get("stream") else self._collect(answering))
        gone = asyncio.ensure_future(self.reader.gone.wait())
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if not work.done():
            work.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            await work
        prompt = {"prompt": answering.text} if self.engine.note_prompts else {}
        trace = {"traceparent": headers["traceparent"]} if "traceparent" in headers else {}
        self.engine.note("request", **answering.report(), **prompt, **trace)
        if answering.outcome == "died":
            os._exit(1)
        if answering.outcome == "aborted":
            sys.stderr.write(CARD_IS_FULL)
            sys.stderr.flush()
            os.abort()
        if answering.refusal is not None and not self.streaming:
            return await self.refuse(answering.refusal)
        return answering.outcome == "done"

    async def _stream(self, answering: Answering) -> None:
        async with aclosing(answering.chunks()) as chunks:
            async for chunk in chunks:
                if not self.streaming:
                    self._head(200, "text/event-stream", "Transfer-Encoding: chunked")
                    self.streaming = True
                event = b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"
                await self._event(event, cut=answering.plan.torn_bytes)
        if answering.outcome in {"done", "failed"} and self.streaming:
            await self._event(b"data: [DONE]\n\n")
            self.writer.write(b"0\r\n\r\n")
            await self.writer.drain()

    async def _collect(self, answering: Answering) -> None:
        async for _ in answering.chunks():
            pass
        if answering.outcome == "done":
            await self.whole(answering.whole())

    async def _event(self, event: bytes, *, cut: bool = False) -> None:
        self.writer.write(b"%x\r\n" % len(event))
        for piece in torn(event) if cut else [event]:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)
        self.writer.write(b"\r\n")
        await self.writer.drain()

    async def whole(self, value: object, status: int = 200) -> bool:
        """Answer with a value as JSON (a string as text)."""
        text = isinstance(value, str)
        data = str(value).encode() if text else json.dumps(value, ensure_ascii=False).encode()
        kind = "text/plain" if text else "application/json; charset=utf-8"
        self._head(status, kind, f"Content-Length: {len(data)}")
        self.writer.write(data)
        await self.writer.drain()
        return status == 200

    async def refuse(self, refusal: Refusal) -> bool:
        await self.whole({"error": refusal.body()}, refusal.status)
        return False

    def _head(self, status: int, kind: str, length: str) -> None:
        keep = "Keep-Alive: timeout=5, max=100" if status == 200 else "Connection: close"
        reason = REASONS.get(status, "Error")
        head = f"HTTP/1.1 {status} {reason}\r\nServer: llama.cpp\r\nContent-Type: {kind}\r\n{length}\r\n{keep}\r\n\r\n"
        self.writer.write(head.encode())


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("-m", "--model")
    parser.add_argument("-a", "--alias")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--api-key")
    parser.add_argument("-np", "--parallel", type=int, default=1)
    parser.add_argument("-c", "--ctx-size", type=int, default=8192)
    parser.add_argument("--slot-save-path")
    parser.add_argument("--version", action="version", version="version: 0 (standin)")
    return parser.parse_known_args(arguments)[0]


def _note_start(engine: Engine, environment: dict[str, str]) -> None:
    shown = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    cards = {name: environment[name] for name in shown if name in environment}
    engine.note("start", pid=os.getpid(), arguments=sys.argv[1:], guarded=bool(engine.key), **cards)


async def main() -> None:
    """Serve until killed."""
    environment = dict(os.environ)
    options = _options(sys.argv[1:])
    engine = Engine(options, environment)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR2, engine.table.hurry)  # before its number is in the log
    _note_start(engine, environment)
    if engine.starts() <= int(environment.get("STANDIN_DIE_WHILE_LOADING", "0")):
        sys.exit(f"error: failed to load model '{engine.model}'")
    tasks: set[asyncio.Task[None]] = set()
    writers: weakref.WeakSet[asyncio.StreamWriter] = weakref.WeakSet()

    def connect() -> asyncio.StreamReaderProtocol:
        reader = Reader()

        def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Awaitable[None]:
            writers.add(writer)
            task = loop.create_task(Connection(engine, reader, writer).serve())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            return task

        return asyncio.StreamReaderProtocol(reader, serve)

    def cut() -> None:
        for writer in tuple(writers):
            writer.transport.abort()

    loop.add_signal_handler(signal.SIGUSR1, cut)
    server = await loop.create_server(connect, options.host, options.port, backlog=512)
    sys.stdout.write(f"listening on http://{options.host}:{options.port}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
