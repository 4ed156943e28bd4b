"""GET /v1/shapes: what `corral bench record` listens to.

Owns: the stream of one recording, and what its salt must be.
Never: what a shape holds (`shapes`).
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from time import monotonic
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import StreamingResponse

from api.house import House
from infra.errors import BadRequest

router = APIRouter()
SALT_HEADER = "x-corral-salt"
SALT_BYTES = 16


@router.get("/v1/shapes")
async def shapes(request: Request) -> StreamingResponse:
    """The shape of each request as it ends, as server-sent events, to who holds a key; of this API process alone.

    Recorders of several processes send one salt to all (`x-corral-salt`, 32 hexadecimal digits).
    """
    house: House = request.app.state.house
    house.keyring.caller(request.headers)
    salt = _salt(request.headers.get(SALT_HEADER, ""))
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    events = _events(request, house, salt)
    first = await anext(events)  # listens now: one listener too many is refused while a status can still be sent
    return StreamingResponse(_all(first, events), media_type="text/event-stream", headers=headers)


def _salt(text: str) -> bytes:
    try:
        salt = bytes.fromhex(text)
    except ValueError:
        salt = b""
    if len(salt) != SALT_BYTES:
        raise BadRequest(f"must be {2 * SALT_BYTES} hexadecimal digits, drawn for this recording", field=SALT_HEADER)
    return salt


async def _all(first: bytes, others: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    async with aclosing(others):
        yield first
        async for event in others:
            yield event


async def _events(request: Request, house: House, salt: bytes) -> AsyncGenerator[bytes]:
    """First who tells and how many such processes there are; then shapes, and each silent second a comment."""
    settings = house.settings
    with house.ledger.shapes.listening(salt) as listener:
        yield _event({"api": settings.api_name, "apis": settings.api_workers, "now_s": monotonic()})
        while not house.closing.begun and not await request.is_disconnected():
            shape = await listener.next()
            yield b": here\n\n" if shape is None else _event(shape | {"dropped": listener.dropped})


def _event(of: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(of) + b"\n\n"
