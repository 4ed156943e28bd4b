"""Taking a request's body in, within bounds.

Owns: the limits on size and time of a body, where it is worked on, and noticing that a client has left before its
answer began.
Never: what the body means.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from api.ending import end
from infra.errors import BadRequest, BodyTooLarge, Cancelled

T = TypeVar("T")
PLAIN = ("", "identity")
INLINE_BYTES = 150_000  # up to here the worst body, of tiny messages, takes about 20 ms, a usual one 3 ms
_beside = ThreadPoolExecutor(2, thread_name_prefix="body")  # the work holds Python's lock: more gain nothing


async def read_body(request: Request, limit_bytes: int, timeout_s: float) -> bytes:
    """The whole body.

    Raises BodyTooLarge, BadRequest when it is compressed or comes too slowly, Cancelled when the client leaves.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() not in PLAIN:
        raise BadRequest(f"{encoding[:20]!r} is not read here; send the body as it is", field="content-encoding")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise _too_large(limit_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            return await _collect(request, limit_bytes)
    except TimeoutError:
        raise BadRequest(f"did not arrive within {timeout_s:g} s", field="body") from None
    except ClientDisconnect:
        raise Cancelled("the client left while sending") from None


async def _collect(request: Request, limit_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


async def understood(raw: bytes, work: Callable[[], T]) -> T:
    """What `work` makes of `raw`; a large body is worked on in a thread, not to hold up everybody else's stream."""
    if len(raw) <= INLINE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_beside, work)


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"request exceeds the maximum size of {limit_bytes} bytes")


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`; if the client hangs up first, `work` is cancelled and Cancelled raised."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Cancelled("the client left while waiting")
        return working.result()
    finally:
        await end((working, watching))


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
