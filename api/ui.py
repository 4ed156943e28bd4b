"""GET /ui: a page that shows the cluster live.

Owns: the page's files, and the stream of snapshots that it draws.
Never: draws (`pages/ui.js` does); waits for a broker that does not answer.
"""

import asyncio
from collections.abc import AsyncIterator
from importlib.resources import files

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api.health import snapshot
from api.house import House
from infra.errors import NotFound

router = APIRouter()
EVERY_S = 1.0
TYPES = {"ui.html": "text/html", "ui.css": "text/css", "ui.js": "text/javascript"}
# Nothing but its own files and its own stream: a page that knows a key must run no one else's script.
# No other page may frame it either, and its form goes nowhere but through that script.
ALONE = "base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
POLICY = f"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; {ALONE}"
HEADERS = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "cache-control": "no-cache"}


@router.api_route("/ui", methods=["GET", "HEAD"])
async def page() -> Response:
    """The page itself holds no figure, so it needs no key; what it draws does."""
    return _file("ui.html")


@router.get("/ui/events")
async def events(request: Request) -> StreamingResponse:
    """A snapshot each second, as server-sent events, until the client or the gateway leaves."""
    house: House = request.app.state.house
    house.keyring.caller(request.headers)
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(_snapshots(request, house), media_type="text/event-stream", headers=headers)


@router.api_route("/ui/{name}", methods=["GET", "HEAD"])
async def part(name: str) -> Response:
    """The page's style and script."""
    return _file(name)


def _file(name: str) -> Response:
    if name not in TYPES:
        raise NotFound(f"path: /ui/{name[:80]} is not known here")
    text = files("api").joinpath("pages", name).read_text(encoding="utf-8")
    return Response(text, media_type=TYPES[name], headers=HEADERS)


async def _snapshots(request: Request, house: House) -> AsyncIterator[bytes]:
    while not house.closing.begun and not await request.is_disconnected():
        yield b"data: " + orjson.dumps(await snapshot(house, requests=True)) + b"\n\n"
        await asyncio.sleep(EVERY_S)
