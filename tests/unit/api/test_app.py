"""The gateway as one application: every response has an id, whatever happened."""

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from api.app import _limits, create_app
from infra.config import Settings
from scheduler.jobs import Limits

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


def test_placement_is_bound_by_the_settings() -> None:
    settings = Settings(queue_limit=7, home_lifetime_s=60, move_margin_s=2.5, urgent_share=0.5)
    assert _limits(settings) == Limits(queue=7, home_ms=60_000, move_margin_ms=2500, urgent_share=0.5)
