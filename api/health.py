"""Is it alive, is it ready, and what is going on.

Owns: the routes that operators, load balancers and the client's first look use. None of them waits for a broker that
does not answer.
Never: changes anything.
"""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.house import House
from api.messages import JsonResponse
from infra.errors import NotAllowed, NotAuthenticated
from scheduler.contract import WorkerView
from scheduler.policy.admission import able, why_none

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
    cause; a second old while the broker answers."""
    house: House = request.app.state.house
    house.keyring.caller(request.headers)
    forecast = house.dispatcher.forecast
    lines = await forecast.shown(house.view)
    workers = [_worker(worker, lines) for worker in sorted(house.view.workers, key=lambda w: w.info.name)]
    waiting = sum(sum(worker["queued"]) for worker in workers)
    shown = {"broker": house.membership.fresh, "workers": workers, "waiting": waiting, "misses": house.turns.totals}
    return JsonResponse({**shown, "coalesced": house.sharing.coalesced, "wait": forecast.figures(house.models())})


def _worker(worker: WorkerView, lines: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    info = worker.info.model_dump(mode="json", exclude={"version"})
    loads = {"queued": list(worker.queued), "running": worker.running, "homes": worker.homes}
    return {**info, **loads, "line": lines.get(worker.info.name, [])}
