"""A large body is understood and packed beside the event loop: it must not hold up anybody's stream."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api import messages, models
from api.ledger import Ledger
from api.protocol.request import Reading
from api.receiving import INLINE_BYTES
from infra.errors import BadRequest
from infra.observability.traces import NO_TRACES

pytestmark = pytest.mark.unit

HOUSE = SimpleNamespace(
    closing=SimpleNamespace(begun=False),
    keyring=SimpleNamespace(caller=lambda _: "key"),
    settings=SimpleNamespace(body_limit_bytes=10 * INLINE_BYTES, body_timeout_s=10, default_level=5),
    reading=Reading(),
    model=lambda: "m",
    models=lambda: ["m"],
    ledger=Ledger(),
    traces=NO_TRACES,
)


class Understood(BadRequest):
    """Ends the request where its body would be understood."""


@pytest.mark.parametrize("size_bytes", [100, INLINE_BYTES, INLINE_BYTES + 1])
@pytest.mark.parametrize(
    ("module", "add", "parser", "path"),
    [
        (messages, messages.add_to, "parse", "/v1/messages"),
        (models, lambda app: app.include_router(models.router), "parse_count", "/v1/messages/count_tokens"),
    ],
    ids=["message", "count"],
)
async def test_only_a_usual_body_is_read_on_the_loop(
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    add: Callable[[FastAPI], None],
    parser: str,
    path: str,
    size_bytes: int,
) -> None:
    threads = []

    def parse(raw: bytes, *_: object, **__: object) -> None:
        assert len(raw) == size_bytes
        threads.append(threading.current_thread())
        raise Understood("enough")

    monkeypatch.setattr(module, parser, parse)
    app = FastAPI()
    app.state.house = HOUSE
    add(app)
    app.add_middleware(Named)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        with pytest.raises(Understood):
            await client.post(path, content=b"x" * size_bytes)
    assert [thread is threading.main_thread() for thread in threads] == [size_bytes <= INLINE_BYTES]


class Named:
    """Stands in for the ids that the composition root gives."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {})["request_id"] = "req_1"
        await self._app(scope, receive, send)
