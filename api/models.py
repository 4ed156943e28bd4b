"""GET /v1/models, GET /v1/models/{id}, POST /v1/messages/count_tokens.

Owns: what is served under which name, and exact counts without the GPU's queue.
Never: an engine; counting threads of the workers answer over Redis.
"""

from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from api.house import House
from api.messages import JsonResponse
from api.protocol.request import parse_count
from api.receiving import read_body, understood
from infra.errors import NotFound, NoWorker
from scheduler.policy.admission import LOADING_RETRY_S, why_none

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> JsonResponse:
    house: House = request.app.state.house
    house.keyring.caller(request.headers)
    models = [_card(model) for model in house.models()]
    ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]} if models else {"first_id": None, "last_id": None}
    return JsonResponse({"data": models, "has_more": False, **ends})


@router.get("/v1/models/{model_id:path}")
async def get_model(request: Request, model_id: str) -> JsonResponse:
    """A served model; any other name the client knows maps to one, so it is found under that name too."""
    house: House = request.app.state.house
    house.keyring.caller(request.headers)
    if not house.model():
        raise NotFound(f"model: {model_id} is not served now; no worker has a model")
    return JsonResponse(_card(model_id))


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request) -> JsonResponse:
    """Exact where a worker answers in time, else an estimate that says so in its body and a header."""
    house: House = request.app.state.house
    house.keyring.caller(request.headers)
    settings = house.settings
    raw = await read_body(request, settings.body_limit_bytes, settings.body_timeout_s)
    parsing = partial(parse_count, raw, models=house.models(), reading=house.reading)
    asked = await understood(raw, parsing)
    if not house.model():
        raise NoWorker(why_none(house.view), retry_after_s=LOADING_RETRY_S)
    count = await house.counts.count(asked, settings.count_timeout_ms / 1000)
    if count.exact:
        return JsonResponse({"input_tokens": count.tokens})
    return JsonResponse({"input_tokens": count.tokens, "estimated": True}, {"x-corral-estimated": "1"})


def _card(model_id: str) -> dict[str, Any]:
    return {"type": "model", "id": model_id, "display_name": model_id, "created_at": "1970-01-01T00:00:00Z"}
