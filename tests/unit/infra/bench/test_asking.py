"""What is read of an answer, in the gateway's form and in the engine's, and what counts as failed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from infra.bench.asking import CHAT, MESSAGES, Outcome, Target, side_by_side
from infra.errors import EngineError

pytestmark = pytest.mark.unit

GATEWAY: list[dict[str, object]] = [
    {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
    {"type": "content_block_start", "index": 0},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
    {"type": "message_delta", "usage": {"input_tokens": 3, "cache_read_input_tokens": 40, "output_tokens": 5}},
    {"type": "message_stop"},
]
ENGINE: list[dict[str, object]] = [
    {"prompt_progress": {"total": 43, "cache": 40}},
    {"choices": [{"delta": {"role": "assistant", "content": None}}]},
    {"choices": [{"delta": {"content": "a"}}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    {
        "choices": [],
        "usage": {"prompt_tokens": 43, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 40}},
    },
]


@asynccontextmanager
async def answering(chunks: list[dict[str, object]], status: str = "200 OK") -> AsyncIterator[str]:
    """A server that gives every request this stream."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
        lines = b"".join(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks)
        writer.write(f"HTTP/1.1 {status}\r\nx-corral-slot: 2\r\nconnection: close\r\n\r\n".encode() + lines)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def outcome_of(chunks: list[dict[str, object]], path: str, status: str = "200 OK") -> Outcome:
    async with answering(chunks, status) as url:
        target = Target(url, "key", path)
        try:
            return await target.ask(b"{}", {})
        finally:
            await target.close()


@pytest.mark.parametrize(("chunks", "path"), [(GATEWAY, MESSAGES), (ENGINE, CHAT)])
async def test_both_forms_tell_the_same(chunks: list[dict[str, object]], path: str) -> None:
    outcome = await outcome_of(chunks, path)
    assert outcome.fine
    assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.output_tokens) == (43, 40, 5)
    assert outcome.slot == 2
    assert 0 < outcome.first_s <= outcome.whole_s


async def test_a_stream_without_text_has_failed() -> None:
    assert (await outcome_of(GATEWAY[:1], MESSAGES)).error == "the answer did not end"


@pytest.mark.parametrize(("chunks", "path"), [(GATEWAY[:4], MESSAGES), (GATEWAY[:3], MESSAGES), (ENGINE[:3], CHAT)])
async def test_a_stream_that_merely_stops_has_failed(chunks: list[dict[str, object]], path: str) -> None:
    assert (await outcome_of(chunks, path)).error == "the answer did not end"


async def test_a_refusal_has_failed_and_says_its_status() -> None:
    assert (await outcome_of([], MESSAGES, "529 Overloaded")).error.startswith("status 529")


async def test_an_error_in_mid_stream_has_failed() -> None:
    broken: list[dict[str, object]] = [*GATEWAY[:3], {"type": "error", "error": {"type": "api_error"}}]
    assert "api_error" in (await outcome_of(broken, MESSAGES)).error


async def test_nobody_at_the_address_has_failed() -> None:
    target = Target("http://127.0.0.1:1", "", MESSAGES)
    assert "Connect" in (await target.ask(b"{}", {})).error
    await target.close()


async def test_every_number_is_asked_once_and_each_client_asks_in_a_row() -> None:
    asked: list[tuple[int, int]] = []
    busy: set[int] = set()

    async def ask(client: int, number: int) -> Outcome:
        assert client not in busy
        busy.add(client)
        await asyncio.sleep(0)
        busy.discard(client)
        asked.append((client, number))
        return Outcome(0.1, 0.2)

    outcomes, took_s = await side_by_side(ask, 3, 8)
    assert sorted(number for _, number in asked) == list(range(8))
    assert len(outcomes) == 8
    assert took_s > 0


async def test_when_one_client_cannot_go_on_the_others_do_not_either() -> None:
    """Else they would still be asking while the next one is measured."""
    asked: list[int] = []

    async def ask(client: int, _: int) -> Outcome:
        asked.append(client)
        await asyncio.sleep(0)
        if client == 0:
            raise EngineError("it is gone")
        return Outcome(0.1, 0.2)

    with pytest.raises(EngineError, match="it is gone"):
        await side_by_side(ask, 2, 2_000)
    before = len(asked)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(asked) == before
