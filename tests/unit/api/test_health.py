"""What those may hear who ask for the house's health."""

from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from api import health
from api.auth import Keyring
from scheduler.contract import WorkerState
from tests.unit.scheduler.policy.views import view, worker

pytestmark = pytest.mark.unit

REASON = "out of memory; see /home/anna/corral/engine-w1.log"


async def ready(keys: dict[str, str], headers: dict[str, str]) -> httpx.Response:
    app = FastAPI()
    app.state.house = SimpleNamespace(
        keyring=Keyring(keys),
        membership=SimpleNamespace(fresh=True),
        closing=SimpleNamespace(begun=False),
        view=view(worker("w1", state=WorkerState.FAILING, reason=REASON)),
    )
    app.include_router(health.router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        return await client.get("/ready", headers=headers)


@pytest.mark.parametrize(
    ("keys", "headers", "told"),
    [
        ({"anna": "secret"}, {}, False),
        ({"anna": "secret"}, {"x-api-key": "wrong"}, False),
        ({"anna": "secret"}, {"x-api-key": "secret"}, True),
        ({}, {}, True),
        ({}, {"host": "evil.example"}, False),
    ],
)
async def test_why_no_worker_is_ready_is_told_only_to_whom_status_is_told(
    keys: dict[str, str], headers: dict[str, str], told: bool
) -> None:
    answer = await ready(keys, headers)
    assert (answer.status_code, answer.json()["ready"]) == (503, False)
    assert (REASON in answer.json()["reason"]) is told
    assert "no worker is ready" in answer.json()["reason"]
