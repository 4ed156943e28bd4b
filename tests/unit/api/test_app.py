"""The gateway as one application: every response has an id, and nobody is served before its first look."""

import asyncio
import socket
from contextlib import closing

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from api import app as module
from api.app import _shared_sockets, create_app
from infra.config import Settings
from scheduler.contract import ClusterView
from scheduler.membership import Membership
from tests.doubles.services import free_port

pytestmark = pytest.mark.unit


async def _breaks(_: Request) -> Response:
    raise RuntimeError("secret words")


@pytest.mark.parametrize(
    ("path", "status"), [("/breaks", 500), ("/nowhere", 404), ("/v1/messages", 405), ("/live", 200)]
)
async def test_every_response_has_one_request_id(path: str, status: int) -> None:
    app = create_app(Settings())
    app.add_route("/breaks", _breaks)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get(path)
    assert answer.status_code == status
    [request_id] = answer.headers.get_list("request-id")
    assert request_id.startswith("req_")
    if status >= 400:
        assert answer.json()["request_id"] == request_id
    assert "secret words" not in answer.text


async def test_nobody_is_served_before_the_first_look_at_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    async def read(_: Membership) -> ClusterView:
        began.set()
        await may_end.wait()
        return ClusterView(now_ms=1)

    monkeypatch.setattr(Membership, "read", read)
    monkeypatch.setattr(module, "FIRST_LOOK_S", 600)
    app = create_app(Settings(redis_url=f"redis://127.0.0.1:{free_port()}/0"))
    lifespan = app.router.lifespan_context(app)
    starting = asyncio.ensure_future(lifespan.__aenter__())
    async with asyncio.timeout(30):
        await began.wait()
        await asyncio.sleep(0)
        assert not starting.done()
        may_end.set()
        await starting
        assert app.state.house.membership.fresh
        await lifespan.__aexit__(None, None, None)


def test_a_process_that_does_not_serve_yet_is_given_no_connection_of_the_shared_port() -> None:
    settings = Settings(port=free_port(), api_workers=2)
    [serves], [starts] = _shared_sockets(settings) or [], _shared_sockets(settings) or []
    with closing(serves), closing(starts):
        serves.listen()
        for _ in range(20):
            with socket.create_connection((settings.host, settings.port), timeout=10):
                serves.settimeout(10)
                serves.accept()[0].close()
