"""POST and DELETE /v1/workers/{name}/drain: take a worker out of service, and back.

Owns: the two routes, and what may stand in the first one's body.
Never: waits until the worker is empty; /v1/status tells how far it is.
"""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from api.house import House
from api.messages import JsonResponse
from api.receiving import read_body
from infra.errors import BadRequest, NotFound

router = APIRouter()
PATH = "/v1/workers/{name}/drain"
LONGEST_S = 86_400
MOST_BYTES = 4096


class Asked(BaseModel):
    """`timeout_s`: how long answers may go on there, before they go on elsewhere; None: as when it is stopped."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    timeout_s: Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False)] | None = None


@router.post(PATH)
async def drain(request: Request, name: str) -> JsonResponse:
    """The worker takes no work from now on. Repeating it sets a new limit and changes nothing else."""
    house = _house_of_caller(request)
    asked = _asked(await read_body(request, MOST_BYTES, house.settings.body_timeout_s))
    _check_known(house, name)
    limit_s = house.settings.drain_s if asked.timeout_s is None else asked.timeout_s
    await house.draining.begin(name, limit_s)
    return JsonResponse({"worker": name, "drain": True, "timeout_s": limit_s})


@router.delete(PATH)
async def undrain(request: Request, name: str) -> JsonResponse:
    """The worker takes work again; one that already does just goes on, and one that is not there now will."""
    house = _house_of_caller(request)
    if not await house.draining.end(name):
        _check_known(house, name)
    return JsonResponse({"worker": name, "drain": False})


def _house_of_caller(request: Request) -> House:
    house: House = request.app.state.house
    house.keyring.caller(request.headers)
    return house


def _asked(body: bytes) -> Asked:
    if not body.strip():
        return Asked()
    try:
        return Asked.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadRequest(first["msg"].lower(), field=".".join(map(str, first["loc"])) or "body") from None


def _check_known(house: House, name: str) -> None:
    names = sorted(worker.info.name for worker in house.view.workers)
    if name not in names:
        raise NotFound(f"worker: {name} is not known; {_who_is(names)}")


def _who_is(names: list[str]) -> str:
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}" if names else "no worker is running"
