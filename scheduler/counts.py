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
from scheduler.contract import CountReply, GenerationRequest
from scheduler.follow import Follower
from scheduler.jobs import API_LIFETIME_MS
from scheduler.packing import pack

CACHED = 4096
ASKED_LIFETIME_S = 5
USUAL_TOKENS_PER_BYTE = 0.28
SMOOTHING = 0.1


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens of a rendered prompt; `exact` is False for an estimate."""

    tokens: int
    exact: bool


class Counts:
    """Counts prompts. One per API process."""

    def __init__(self, redis: Redis, follower: Follower, api: str) -> None:
        self._redis = redis
        self._follower = follower
        self._wake = keys.wake(api)
        self._cache: OrderedDict[bytes, int] = OrderedDict()
        self._tokens_per_byte = USUAL_TOKENS_PER_BYTE

    async def count(self, request: GenerationRequest, timeout_s: float) -> TokenCount:
        """Tokens of `request`; an estimate when no worker answers within `timeout_s`.

        Raises BrokerDown, and BadRequest when the engine's template refuses the request.
        """
        body = pack(request)
        key = hashlib.sha256(body).digest()
        if key in self._cache:
            self._cache.move_to_end(key)
            return TokenCount(self._cache[key], exact=True)
        reply = await self._ask(request.model, body, timeout_s)
        size = len(request.model_dump_json())
        if reply is None:
            return TokenCount(max(1, round(size * self._tokens_per_byte)), exact=False)
        if reply.tokens is None:
            raise BadRequest(reply.error)
        self._learn(key, size, reply.tokens)
        return TokenCount(reply.tokens, exact=True)

    async def _ask(self, model: str, body: bytes, timeout_s: float) -> CountReply | None:
        name = keys.stream(f"count-{uuid.uuid4().hex}")
        async with self._follower.follow(name) as feed:
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.xadd(self._wake, {"job": name}, maxlen=64)
            pipeline.pexpire(self._wake, API_LIFETIME_MS)
            pipeline.rpush(keys.count(model), name.encode() + b"\n" + body)
            pipeline.expire(keys.count(model), ASKED_LIFETIME_S)
            with broker_errors():
                await pipeline.execute()
            payloads = await feed.take(timeout_s)
        try:
            return CountReply.model_validate_json(payloads[0]) if payloads else None
        except ValidationError:
            return None

    def _learn(self, key: bytes, size: int, tokens: int) -> None:
        self._cache[key] = tokens
        while len(self._cache) > CACHED:
            self._cache.popitem(last=False)
        self._tokens_per_byte += SMOOTHING * (tokens / max(1, size) - self._tokens_per_byte)
