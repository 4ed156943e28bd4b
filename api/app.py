"""The API's composition root: settings -> clients -> FastAPI.

Owns: which objects exist in an API process, its background tasks, and how it starts and stops.
Never: does any work of theirs. `python -m api.app` serves.
"""

import asyncio
import contextlib
import gc
import math
import os
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from types import FrameType
from typing import Any, Protocol

import structlog
import uvicorn
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api import drains, health, messages, metrics, models, recording, ui, why
from api.auth import Keyring
from api.closing import Closing
from api.connection import Connection
from api.ending import end
from api.errors import reply_for
from api.explaining import Explainer
from api.house import House, reading_of
from api.messages import JsonResponse
from api.others import Others
from api.protocol.base import base_of
from api.warming import Warming
from infra import config, entry, keys, warm_files
from infra.celery_app import agree, build
from infra.config import Settings
from infra.errors import BrokerDown, Cancelled, ConfigError, CorralError, NotFound, StartError
from infra.network import is_loopback
from infra.observability import logs, traces
from infra.redis_client import READ_TIMEOUT_S, async_client, sync_client
from scheduler.admitting import limits_of
from scheduler.counts import Counts
from scheduler.dispatch import Dispatcher
from scheduler.draining import Draining
from scheduler.follow import Follower
from scheduler.forecast import Forecast
from scheduler.gathering import Gathering
from scheduler.jobs import Jobs
from scheduler.ledgers import Ledgers
from scheduler.lines import Lines
from scheduler.membership import Membership
from scheduler.promises import Promises
from scheduler.queue import Tickets
from scheduler.raising import Raising
from scheduler.recovery import Recovery
from scheduler.remembered import Remembered
from scheduler.rules import rules_of
from scheduler.sharing import Sharing
from scheduler.turns import Turns
from scheduler.warmups import Warmups

log = structlog.get_logger(__name__)
GC_THRESHOLD = 50_000
RESTART_S = 1.0
CUT_AFTER_S = 2  # an answer looks up once a second; only one whose client does not read is cut
GIVE_BACK_LIMIT_S = 2.0
FIRST_LOOK_S = 2.0  # a broker that is away is no reason not to listen: the answers say so


def create_app(settings: Settings) -> FastAPI:
    """The gateway. Raises ConfigError for an open address without keys, or a file of `warm` that is of no use."""
    api_keys = config.api_keys(settings)
    if not is_loopback(settings.host) and not api_keys:
        raise ConfigError(f"CORRAL_API_KEYS: needed as name:key to listen on {settings.host}; loopback needs none")
    quiet: Any = {"tracing": False, "metrics": False, "logs": False}  # its own would quote what a client sent
    app = FastAPI(title="Corral", lifespan=_lifespan, telemetry=quiet, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.settings, app.state.keys = settings, api_keys
    app.state.traces = traces.traces(settings, "api", settings.api_name)
    app.state.bases = [base_of(file, reading_of(settings)) for file in warm_files.read(settings.warm)]
    messages.add_to(app)
    for part in (models, health, why, drains, metrics, ui, recording):
        app.include_router(part.router)
    app.add_exception_handler(CorralError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_bug)
    app.add_middleware(RequestIds)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    api = uuid.uuid4().hex[:12]
    redis = async_client(settings.redis_url, name=keys.api_client(api))
    reader = async_client(settings.redis_url, connections=2, timeout_s=READ_TIMEOUT_S)
    follower = Follower(reader, api)
    membership = Membership(redis)
    remembered = Remembered()
    jobs = Jobs(redis, api, limits_of(settings), remembered)
    tickets = Tickets(build(settings))
    bound, lease_s = settings.load_bound, settings.lease_lifetime_s
    recovery = Recovery(redis, membership, jobs, tickets, bound, lease_s, app.state.traces)
    lines = Lines(redis, rules_of(settings))
    forecast = Forecast(lines, Promises(redis, settings.queue_limit))
    dispatcher = Dispatcher(membership, jobs, tickets, follower, bound, forecast)
    turns = Turns(redis, settings.home_lifetime_s, remembered)
    app.state.house = House(
        settings=settings,
        keyring=Keyring(app.state.keys),
        membership=membership,
        dispatcher=dispatcher,
        lines=lines,
        sharing=_sharing(settings, dispatcher, Raising(redis, tickets)),
        counts=Counts(redis, follower, api, membership),
        turns=turns,
        explainer=Explainer(turns, dispatcher),
        closing=Closing(settings.drain_s),
        draining=Draining(redis),
        others=Others(Ledgers(redis, api), settings.api_name),
        traces=app.state.traces,
    )
    warming = Warming(app.state.bases, dispatcher, Warmups(redis), app.state.house.closing)
    log.info("serving", host=settings.host, port=settings.port)
    try:
        async with _running(app.state.house, (membership, follower, recovery, turns), warming):
            yield
    finally:
        tickets.close()
        await redis.aclose()
        await reader.aclose()


@contextlib.asynccontextmanager
async def _running(house: House, parts: Sequence["Part"], warming: Warming) -> AsyncIterator[None]:
    """The background parts run inside the block; at its end what the house holds is given back before they stop."""
    tasks = [asyncio.create_task(_keep_running(part)) for part in (*parts, house.others)]
    warm_ups = asyncio.create_task(_keep_running(warming))
    try:
        # uvicorn listens when this is over: nobody is refused because the workers are not known yet.
        await house.membership.first_look(FIRST_LOOK_S)
        yield
    finally:
        await end([warm_ups])  # first: it gives its own jobs back
        await house.sharing.settle(GIVE_BACK_LIMIT_S)
        await house.explainer.settle(GIVE_BACK_LIMIT_S)
        await end(tasks)
        await asyncio.to_thread(house.traces.close)


def _sharing(settings: Settings, dispatcher: Dispatcher, raising: Raising) -> Sharing:
    gathering = Gathering(lambda: dispatcher.view, on=settings.gather_short)
    return Sharing(dispatcher, raising, gathering, coalesce=settings.coalesce, linger_s=settings.linger_s)


class Part(Protocol):
    """Something that runs beside the requests until it is cancelled."""

    async def run(self) -> None: ...


async def _keep_running(part: Part) -> None:
    """Run `part`; should it end with an error it never expected, say so and start it again: without it all hangs."""
    while True:
        try:
            return await part.run()
        except Exception:
            log.exception("background_part_failed", background=type(part).__name__)
            await asyncio.sleep(RESTART_S)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CorralError)  # noqa: S101  # registered for this class alone
    if isinstance(error, Cancelled):
        return Response(status_code=499)  # nobody reads it
    reply = reply_for(error, request.state.request_id)
    return JsonResponse(reply.body, reply.headers, reply.status)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # registered for this class alone
    if error.status_code == HTTPStatus.NOT_FOUND:
        return await _on_error(request, NotFound(f"path: {request.url.path} is not known here"))
    reply = reply_for(NotFound(f"{request.method} {request.url.path}: {error.detail}"), request.state.request_id)
    return JsonResponse(reply.body, reply.headers, error.status_code)


async def _on_bug(request: Request, error: Exception) -> Response:
    log.error("unexpected_error", path=request.url.path, exc_info=error)
    answer = await _on_error(request, CorralError("the gateway met an unexpected error; its log has the details"))
    answer.headers["request-id"] = request.state.request_id  # Starlette answers bugs outside of RequestIds
    return answer


class RequestIds:
    """Gives each request an id and each response the `request-id` header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{os.urandom(16).hex()}"
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"request-id", request_id.encode())]
            await send(message)

        await self._app(scope, receive, send_with_id)


class Server(uvicorn.Server):
    """uvicorn that tells the house first: waiting requests are refused at once, running answers may end."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # uvicorn's signature
        house: House | None = getattr(self.config.app.state, "house", None)  # type: ignore[union-attr]
        if house is not None:
            house.closing.begin()
        # uvicorn's own would send itself the signal again at the end, and the exit code would not be 0.
        self.force_exit = self.force_exit or (self.should_exit and sig == signal.SIGINT)
        self.should_exit = True


def serve(settings: Settings) -> None:
    """Serve until a signal comes. Raises ConfigError or StartError with one clear sentence."""
    with contextlib.suppress(BrokerDown), contextlib.closing(sync_client(settings.redis_url)) as redis:
        agree(build(settings), redis)  # without a broker the API starts, too
    if settings.api_workers > 1:
        logs.configure(settings, settings.api_name)
    gc.freeze()  # modules stay; without them a collection during a large request is several times shorter
    gc.set_threshold(GC_THRESHOLD)
    server = Server(
        uvicorn.Config(
            create_app(settings),
            host=settings.host,
            port=settings.port,
            loop="uvloop",
            http=Connection,
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # nothing here asks who the client is
            server_header=False,
            timeout_graceful_shutdown=math.ceil(settings.drain_s) + CUT_AFTER_S,
        )
    )
    try:
        server.run(_shared_sockets(settings))
    except SystemExit as error:
        reason = f"cannot listen on {settings.host}:{settings.port}; is the port taken? choose another --port"
        raise StartError("api", reason) from error
    if not server.started:
        raise StartError("api", f"cannot listen on {settings.host}:{settings.port}; choose another --port")


def _shared_sockets(settings: Settings) -> list[socket.socket] | None:
    """The port, which other API processes listen on too; None when there are none. Raises StartError.

    The kernel gives each connection to one of them, and no more to one that died. It gives none to one that does not
    listen yet: uvicorn lets it, once the process knows the workers.
    """
    if settings.api_workers == 1:
        return None
    shared = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    try:
        if shared.family is socket.AF_INET6:
            shared.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        shared.bind((settings.host, settings.port))
        return [shared]
    except OSError as error:
        shared.close()
        reason = f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another --port"
        raise StartError("api", reason) from error


def main() -> int:
    """The exit code of this process."""
    return entry.run("api", serve)


if __name__ == "__main__":
    sys.exit(main())
