"""What those may hear who ask for the house's health."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api import health
from api.auth import Keyring
from api.tally import Tally
from scheduler.contract import WorkerState
from scheduler.policy.claiming import Occupied
from scheduler.policy.outlook import Outlook
from tests.unit.scheduler.policy.lines import RULES, line, waiting
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


def seen(*levels: int, queued: int = 0) -> Outlook:
    """A look at a line in which jobs of these levels wait while one runs."""
    look = replace(line(*(waiting(n, level) for n, level in enumerate(levels))), running=[Occupied(5, "k", "a")])
    return Outlook(look, RULES, [(0.0,)], {}, queued)


async def told(state: WorkerState, look: Outlook | None) -> dict[str, Any]:
    """What status says while the snapshot of the cluster, older than the look, has seven jobs at level 5."""
    jobs = look.line.waiting if look else ()
    rows = [{"place": n, "level": job.level, "expected_s": 0.0} for n, job in enumerate(jobs, 1)]

    async def shown(_: object) -> dict[str, Any]:
        return {"w1": rows} if look else {}

    app = FastAPI()
    app.state.house = SimpleNamespace(
        settings=SimpleNamespace(api_name="api"),
        keyring=Keyring({}),
        membership=SimpleNamespace(fresh=True),
        view=view(worker("w1", state=state, queued=7, running=2)),
        lines=SimpleNamespace(of=lambda _: look),
        dispatcher=SimpleNamespace(forecast=SimpleNamespace(shown=shown, figures=lambda _: {"waits": 1})),
        sharing=SimpleNamespace(coalesced=0),
        turns=SimpleNamespace(totals={}),
        models=list,
        tally=Tally(in_vain=3),
    )
    app.include_router(health.router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        answer: dict[str, Any] = (await client.get("/v1/status")).json()
    return answer


async def test_all_numbers_of_a_line_are_of_one_look_at_it() -> None:
    answer = await told(WorkerState.READY, seen(3, 5, 5))
    (one,) = answer["workers"]
    assert one["queued"] == [0, 0, 0, 1, 0, 2, 0, 0, 0, 0]
    assert (len(one["line"]), answer["waiting"], one["running"]) == (3, 3, 1)
    assert answer["wait"] == {"waits": 1, "in_vain": 3}


@pytest.mark.parametrize("look", [None, seen(5, queued=300)])
async def test_of_a_line_that_was_not_looked_at_to_its_end_the_snapshot_tells(look: Outlook | None) -> None:
    answer = await told(WorkerState.READY, look)
    assert (answer["workers"][0]["queued"][5], answer["waiting"], answer["workers"][0]["running"]) == (7, 7, 2)


@pytest.mark.parametrize(("state", "start"), [(WorkerState.READY, 0.0), (WorkerState.LOADING, None)])
async def test_no_start_is_foretold_before_a_worker_is_ready(state: WorkerState, start: float | None) -> None:
    answer = await told(state, seen(5, 5))
    assert [job["expected_s"] for job in answer["workers"][0]["line"]] == [start, start]
