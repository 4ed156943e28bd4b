"""Exact token counts without the GPU's queue.

Owns: asking the counting threads of the workers, the cache of answers, and the estimate when nobody answers.
Never: knows an engine or a template.
"""

import hashlib
import uuid
from collections import OrderedDict
from dataclasses import dataclass

from pydantic import ValidationError
from redis.asyncio import Redis

from infra import keys
from infra.errors import BadRequest
from infra.redis_client import broker_errors
from scheduler import scripts
from scheduler.contract import CountReply, PackedRequest
from scheduler.follow import Follower
from scheduler.jobs import API_LIFETIME_MS
from scheduler.membership import Membership

CACHED = 4096
MOST_WAITING = 1024  # in one model's line; far more than its workers count while anybody waits
USUAL_TOKENS_PER_BYTE = 0.28
SMOOTHING = 0.1


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens of a rendered prompt; `exact` is False for an estimate."""

    tokens: int
    exact: bool


class Counts:
    """Counts prompts. One per API process."""

    def __init__(self, redis: Redis, follower: Follower, api: str, membership: Membership) -> None:
        self._ask_script = redis.register_script(scripts.text("ask"))
        self._follower = follower
        self._membership = membership
        self._wake = keys.wake(api)
        self._cache: OrderedDict[bytes, int] = OrderedDict()
        self._tokens_per_byte = USUAL_TOKENS_PER_BYTE

    async def count(self, request: PackedRequest, timeout_s: float) -> TokenCount:
        """Tokens of `request`; an estimate when no worker answers within `timeout_s`.

        Raises BrokerDown, and BadRequest when the engine's template refuses the request.
        """
        key = self._key(request)
        if key in self._cache:
            self._cache.move_to_end(key)
            return TokenCount(self._cache[key], exact=True)
        reply = await self._ask(request, timeout_s)
        if reply is None:
            return TokenCount(self.estimate(request), exact=False)
        if reply.tokens is None:
            raise BadRequest(reply.error)
        self._learn(key, request.json_bytes, reply.tokens)
        return TokenCount(reply.tokens, exact=True)

    def estimate(self, request: PackedRequest) -> int:
        """Tokens of `request` by its size, as far as exact counts have taught; never waits."""
        return max(1, round(request.json_bytes * self._tokens_per_byte))

    async def _ask(self, request: PackedRequest, timeout_s: float) -> CountReply | None:
        name = keys.stream(f"count-{uuid.uuid4().hex}")
        asked: list[str | bytes | int] = [
            name,
            request.body,
            max(1, int(timeout_s * 1000)),
            MOST_WAITING,
            API_LIFETIME_MS,
        ]
        async with self._follower.follow(name) as feed:
            with broker_errors():
                await self._ask_script([keys.count(request.model), self._wake], asked)
            payloads = await feed.take(timeout_s)
        try:
            return CountReply.model_validate_json(payloads[0]) if payloads else None
        except ValidationError:
            return None

    def _key(self, request: PackedRequest) -> bytes:
        """Of a request and the files that its model is now: another one may come under the same name."""
        workers = self._membership.view.workers
        hashes = {worker.info.model_hash for worker in workers if worker.info.model == request.model}
        digest = hashlib.sha256("".join(f"{one}\n" for one in sorted(hashes) if one).encode())
        digest.update(request.body)
        return digest.digest()

    def seen(self, request: PackedRequest, tokens: int) -> None:
        """An engine said how long a prompt is: estimates get better."""
        self._calibrate(request.json_bytes, tokens)

    def _learn(self, key: bytes, size: int, tokens: int) -> None:
        self._cache[key] = tokens
        while len(self._cache) > CACHED:
            self._cache.popitem(last=False)
        self._calibrate(size, tokens)

    def _calibrate(self, size: int, tokens: int) -> None:
        self._tokens_per_byte += SMOOTHING * (tokens / max(1, size) - self._tokens_per_byte)
