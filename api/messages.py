"""POST /v1/messages as a straight line: receive -> parse -> dispatch -> answer.

Owns: the order of the rooms a request goes through, and that leaving gives everything back.
Never: what happens inside a room.
"""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from api.answer import Answer, patience
from api.house import House
from api.protocol.request import Call, parse
from api.receiving import read_body, understood, unless_gone
from api.record import Record
from infra.errors import BadRequest, ShuttingDown
from infra.observability import stages
from scheduler.contract import JobSpec


def add_to(app: FastAPI) -> None:
    """Plainly: FastAPI's own routes look for parameters and a body, and its routers look twice for their routes."""
    app.add_route("/v1/messages", create_message, methods=["POST"])


async def create_message(request: Request) -> Response:
    """The floor plan. Everything entered on the way is left again at the end, or when the client hangs up."""
    house: House = request.app.state.house
    async with AsyncExitStack() as rooms:
        span = house.traces.begin("request", request.headers)
        record = rooms.enter_context(Record(request.state.request_id, house.ledger, span))
        call = record.call = await _receive(request, house)
        held = await rooms.enter_async_context(house.sharing.submit(_job(call, house, span.traceparent)))
        answer = record.answer = Answer(call, record.request_id, held, house)
        if not call.stream:
            message = await unless_gone(request, answer.whole())
            return JsonResponse(message, answer.headers())
        await unless_gone(request, answer.commit())
        return EventResponse(answer.events(), answer.headers(), rooms.pop_all())


async def _receive(request: Request, house: House) -> Call:
    if house.closing.begun:
        raise ShuttingDown("the gateway is being stopped", retry_after_s=5)
    key_name = house.keyring.caller(request.headers)
    raw = await read_body(request, house.settings.body_limit_bytes, house.settings.body_timeout_s)
    stages.mark("received")
    parsing = partial(
        parse,
        raw,
        request.headers,
        key_name=key_name,
        models=house.models(),
        default_level=house.settings.default_level,
        reading=house.reading,
    )
    call = await understood(raw, parsing)
    stages.mark("parsed")
    if call.stream and request.scope["http_version"] == "1.0":
        raise BadRequest("HTTP/1.0 cannot carry a stream; ask with HTTP/1.1", field="stream")
    return call


def _job(call: Call, house: House, traceparent: str) -> JobSpec:
    settings, who = house.settings, call.identity
    return JobSpec(
        id=os.urandom(16).hex(),
        identity=who,
        level=call.level,
        wait_limit_ms=int(patience(call, house).wait_s * 1000),
        prompt_tokens=house.counts.estimate(call.request),
        agent_weight=settings.agent_weights.get(who.agent, 1.0),
        key_weight=settings.key_weights.get(who.key_name, 1.0),
        request=call.request,
        traceparent=traceparent,
    )


class JsonResponse(Response):
    """A JSON body made by orjson."""

    media_type = "application/json"

    def __init__(self, body: Any, headers: dict[str, str] | None = None, status: int = 200) -> None:
        super().__init__(orjson.dumps(body), status_code=status, headers=headers)


class EventResponse(StreamingResponse):
    """A stream of server-sent events that closes `rooms` when it ends, however it ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], headers: dict[str, str], rooms: AsyncExitStack) -> None:
        super().__init__(events, headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        self._rooms = rooms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._rooms:
            await super().__call__(scope, receive, send)
