"""GET /v1/why/{request or agent}: why tokens were read again.

Owns: the route; a request's id gives its account, an agent's label those of its late requests.
Never: judges (`scheduler.policy.misses`).
"""

from fastapi import APIRouter
from starlette.requests import Request

from api.house import House
from api.messages import JsonResponse
from infra.errors import NotFound

router = APIRouter()


@router.get("/v1/why/{name:path}")
async def why(request: Request, name: str) -> JsonResponse:
    """`requests`, newest first. Accounts are kept for an hour, the last twenty of an agent."""
    house: House = request.app.state.house
    house.keyring.caller(request.headers)
    one = await house.turns.why(name)
    found = [one] if one else await house.turns.whys(name)
    if not found:
        raise NotFound(f"{name}: no request or agent of that name was answered within the last hour")
    return JsonResponse({"requests": found})
