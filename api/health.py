"""Is it alive, is it ready, and what is going on.

Owns: the routes that operators, load balancers and the client's first look use. None of them waits for a broker that
does not answer.
Never: changes anything.
"""

from collections import Counter
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.house import House
from api.messages import JsonResponse
from infra.errors import NotAllowed, NotAuthenticated
from scheduler.contract import WorkerState, WorkerView
from scheduler.policy.admission import able, why_none
from scheduler.policy.outlook import Outlook

router = APIRouter()


@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route("/api/hello", methods=["GET", "HEAD"])
async def hello() -> JsonResponse:
    """What the client asks first."""
    return JsonResponse({"name": "corral"})


@router.post("/api/event_logging/batch")
async def swallow() -> Response:
    """Older clients send telemetry here; it is not kept."""
    return Response(status_code=200)


@router.get("/live")
async def live() -> JsonResponse:
    return JsonResponse({"live": True})


@router.get("/ready")
async def ready(request: Request) -> JsonResponse:
    house: House = request.app.state.house
    if not house.membership.fresh:
        return JsonResponse({"ready": False, "reason": "the broker does not answer"}, status=503)
    if house.closing.begun or not able(house.view):
        reason = "the gateway is being stopped" if house.closing.begun else _why_none(request, house)
        return JsonResponse({"ready": False, "reason": reason}, status=503)
    return JsonResponse({"ready": True})


def _why_none(request: Request, house: House) -> str:
    """The details, which may name files of a worker's machine, only for whom `status` would tell them too."""
    try:
        house.keyring.caller(request.headers)
    except (NotAuthenticated, NotAllowed):
        return "no worker is ready"
    return why_none(house.view)


@router.get("/v1/status")
async def status(request: Request) -> JsonResponse:
    """Workers, their slots and lines, who waits there for how long, how right that is, and what cache misses cost by
    cause; a second old while the broker answers. All that is said of one worker's line is of one look at it."""
    house: House = request.app.state.house
    house.keyring.caller(request.headers)
    return JsonResponse(await snapshot(house, requests="requests" in request.query_params))


async def snapshot(house: House, *, requests: bool) -> dict[str, Any]:
    """What `status` answers; with `requests` also which ones the API processes answer now and answered lately."""
    forecast = house.dispatcher.forecast
    shown_lines = await forecast.shown(house.view)
    # Nothing is waited for in between: these are the looks that the lines were shown by.
    workers = [
        _worker(worker, house.lines.of(worker.info.name), shown_lines.get(worker.info.name, []))
        for worker in sorted(house.view.workers, key=lambda w: w.info.name)
    ]
    lost = [one.model_dump(mode="json") for one in house.view.lost]
    waiting = sum(sum(worker["queued"]) for worker in [*workers, *lost])
    shown = {
        "api": house.settings.api_name,
        "broker": house.membership.fresh,
        "workers": workers,
        "lost": lost,
        "waiting": waiting,
        "misses": house.turns.totals,
    }
    wait = {**forecast.figures(house.models()), "in_vain": house.tally.in_vain}
    shown |= house.others.look() if requests else {}
    return {**shown, "coalesced": house.sharing.coalesced, "wait": wait}


def _worker(worker: WorkerView, seen: Outlook | None, line: list[dict[str, Any]]) -> dict[str, Any]:
    info = worker.info.model_dump(mode="json", exclude={"version"})
    queued, running = list(worker.queued), worker.running
    if seen is not None and seen.queued == len(seen.line.waiting):  # not all of a very long line is looked at
        levels = Counter(job.level for job in seen.line.waiting)
        queued, running = [levels[level] for level in range(len(queued))], len(seen.line.running)
    if worker.info.state is not WorkerState.READY:
        line = [{**job, "expected_s": None} for job in line]  # nobody knows how long that takes
    return {**info, "queued": queued, "running": running, "homes": worker.homes, "line": line}
