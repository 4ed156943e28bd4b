"""Who may listen to shapes, and what becomes of one that is never answered."""

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from api import recording
from api.app import create_app
from api.auth import Keyring
from api.closing import Closing
from api.ledger import Ledger
from api.shapes import MOST_LISTENERS
from infra.config import Settings

pytestmark = pytest.mark.unit
SALT = "ab" * 16


def house() -> SimpleNamespace:
    settings = Settings()
    return SimpleNamespace(settings=settings, keyring=Keyring({}), ledger=Ledger(), closing=Closing(settings.drain_s))


async def test_one_listener_too_many_is_told_so_by_a_status() -> None:
    app = create_app(Settings())
    app.state.house = full = house()
    with ExitStack() as others:
        for _ in range(MOST_LISTENERS):
            others.enter_context(full.ledger.shapes.listening(bytes(16)))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            answer = await client.get("/v1/shapes", headers={"x-corral-salt": SALT})
    assert answer.status_code == 503
    assert "end one of them" in answer.json()["error"]["message"]


async def test_a_listener_that_left_before_its_first_byte_is_forgotten() -> None:
    here = house()
    headers = [(b"host", b"localhost"), (b"x-corral-salt", SALT.encode())]
    scope: dict[str, Any] = {"type": "http", "app": SimpleNamespace(state=SimpleNamespace(house=here))}
    for _ in range(2 * MOST_LISTENERS):
        response = await recording.shapes(Request(scope | {"headers": headers}))
        del response  # its client is gone: nobody iterates it
        await asyncio.sleep(0)
        await asyncio.sleep(0)
