"""One timed request, to the gateway or to an engine, and many of them from clients side by side.

Owns: the clock of a request, what is read of its stream, how much work it was, and the closed loop of a client.
Never: makes a body, judges a figure.

Every request has a connection of its own on both sides: the engine closes a kept one after about 100 requests.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter
from typing import Any

import httpx
import orjson

MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
ANSWER_LIMIT_S = 900.0

Hear = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: `first_s` to its first text, `whole_s` to its end; `error` is empty when it went well.

    `status` is 0 when nobody answered. -1 stands for what a header did not tell: `retry_after_s`, how long the request
    waited (`queue_ms`), and how long it was expected to wait when it came (`eta_ms`).
    """

    first_s: float
    whole_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    slot: int = -1
    worker: str = ""
    error: str = ""
    status: int = 0
    retry_after_s: int = -1
    queue_ms: int = -1
    eta_ms: int = -1

    @property
    def fine(self) -> bool:
        return not self.error


class Target:
    """An address that is asked: the gateway (MESSAGES) or an engine (CHAT)."""

    def __init__(self, base_url: str, key: str, path: str) -> None:
        self._path = path
        credential = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers=credential,
            timeout=httpx.Timeout(ANSWER_LIMIT_S, connect=30),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
        )

    async def ask(self, body: bytes, headers: dict[str, str], hear: Hear | None = None) -> Outcome:
        """Send `body` once and read the whole stream; `hear` is given each chunk. Never raises for what the other side
        does."""
        began_s = perf_counter()
        seen = _Seen()
        error = ""
        try:
            async with self._http.stream("POST", self._path, content=body, headers=headers) as response:
                seen.head(response)
                if response.status_code != httpx.codes.OK:
                    error = f"status {response.status_code}: {(await response.aread())[:200].decode(errors='replace')}"
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        chunk = orjson.loads(line[6:])
                        seen.chunk(chunk)
                        if hear is not None:
                            hear(chunk)
        except httpx.HTTPError as problem:
            error = f"{type(problem).__name__}: {problem}"
        ended_s = perf_counter()
        # A model may end its turn at once: an answer without text is one, if it says what it generated.
        whole = seen.ended and (seen.first_s or seen.output_tokens)
        error = error or seen.error or ("" if whole else "the answer did not end")
        return Outcome(
            first_s=(seen.first_s or ended_s) - began_s,
            whole_s=ended_s - began_s,
            prompt_tokens=seen.prompt_tokens,
            cached_tokens=seen.cached_tokens,
            output_tokens=seen.output_tokens,
            slot=seen.slot,
            worker=seen.worker,
            error=error,
            status=seen.status,
            retry_after_s=seen.retry_after_s,
            queue_ms=seen.queue_ms,
            eta_ms=seen.eta_ms,
        )

    @asynccontextmanager
    async def opened(self, body: bytes, headers: dict[str, str]) -> AsyncIterator[int]:
        """A stream held open, its status given; leaving the block hangs up."""
        async with self._http.stream("POST", self._path, content=body, headers=headers) as response:
            yield response.status_code

    async def close(self) -> None:
        await self._http.aclose()


class _Seen:
    """What has been read of one stream, in either form."""

    def __init__(self) -> None:
        self.first_s = 0.0
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.slot = self.retry_after_s = self.queue_ms = self.eta_ms = -1
        self.status = 0
        self.worker = self.error = ""
        self.ended = False  # a stream that merely stops is no answer, however soon it does

    def head(self, response: httpx.Response) -> None:
        told = response.headers
        self.status = response.status_code
        self.slot = int(told.get("x-corral-slot", -1))
        self.worker = told.get("x-corral-worker", "")
        self.retry_after_s = int(told.get("retry-after", -1))
        self.queue_ms = int(told.get("x-corral-queue-ms", -1))
        self.eta_ms = int(told.get("x-corral-eta-ms", -1))

    def chunk(self, chunk: dict[str, Any]) -> None:
        if not self.first_s and _holds_text(chunk):
            self.first_s = perf_counter()
        if "error" in chunk:
            self.error = str(chunk["error"])[:200]
        usage = chunk.get("usage") or (chunk.get("message") or {}).get("usage") or {}
        if "input_tokens" in usage:
            self.cached_tokens = usage.get("cache_read_input_tokens") or 0
            self.prompt_tokens = usage["input_tokens"] + self.cached_tokens
        self.ended = self.ended or _ends(chunk)
        if chunk.get("type") == "message_delta":
            self.output_tokens = usage.get("output_tokens") or 0
        elif "prompt_tokens" in usage:
            self.prompt_tokens, self.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def _holds_text(chunk: dict[str, Any]) -> bool:
    if chunk.get("type") == "content_block_delta":
        return True
    choices = chunk.get("choices")
    delta = choices[0].get("delta", {}) if choices else {}
    return any(delta.get(part) for part in ("content", "reasoning_content", "tool_calls"))


def _ends(chunk: dict[str, Any]) -> bool:
    choices = chunk.get("choices")
    return chunk.get("type") == "message_stop" or bool(choices and choices[0].get("finish_reason"))


def same_work(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Mean tokens of prompt, cache and answer, which show whether two arms did the same. Raises ValueError for none."""
    names = ("prompt_tokens", "cached_tokens", "output_tokens")
    return {name: round(fmean(getattr(outcome, name) for outcome in outcomes)) for name in names}


Ask = Callable[[int, int], Awaitable[Outcome]]


async def side_by_side(ask: Ask, clients: int, requests: int) -> tuple[list[Outcome], float]:
    """`requests` calls of `ask(client, number)`, each client its share in a row; and the seconds it took.

    When a call raises, all clients stop, so that none still asks while something else is measured.
    """
    shares: Sequence[range] = [range(client, requests, clients) for client in range(clients)]

    async def client_asks(client: int) -> list[Outcome]:
        return [await ask(client, number) for number in shares[client]]

    began_s = perf_counter()
    asking = [asyncio.create_task(client_asks(client)) for client in range(clients)]
    try:
        answers = await asyncio.gather(*asking)
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    return [outcome for share in answers for outcome in share], perf_counter() - began_s
