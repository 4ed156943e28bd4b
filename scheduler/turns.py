"""What is remembered of a turn after its end: for the next turn, for `why`, and in the totals.

Owns: the last turn of each conversation, the accounts of late requests, the size of homes, the totals of misses.
Never: judges (`policy.misses`), writes a word of a prompt; an answer never waits for any of it.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from redis.asyncio import Redis

from infra import keys
from infra.errors import BrokerDown
from infra.redis_client import being_cancelled, broker_errors
from scheduler import scripts
from scheduler.policy.chain import Chain
from scheduler.policy.misses import Cause, Turn
from scheduler.policy.placement import Home
from scheduler.remembered import Remembered

WHY_LIFETIME_MS = 3_600_000
WHYS_KEPT = 20
REFRESH_S = 1.0

Why = dict[str, Any]
Totals = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Kept:
    """What the end of an answer leaves behind. `why` is the account as `/v1/why` shows it."""

    line: str
    agent: str
    turn: Turn
    slot: int
    cause: Cause
    lost_tokens: int
    lost_ms: int
    why: Mapping[str, Any]


class Turns:
    """The store of turns. `last`, `keep`, `why` and `whys` raise BrokerDown; `totals` never waits."""

    def __init__(self, redis: Redis, lifetime_s: float, remembered: Remembered | None = None) -> None:
        """A turn is remembered for `lifetime_s`, as long as a conversation's home."""
        self._redis = redis
        self._remembered = remembered or Remembered()
        self._lifetime_ms = int(lifetime_s * 1000)
        self._recall = redis.register_script(scripts.text("recall"))
        self._keep = redis.register_script(scripts.text("keep"))
        self.totals: Totals = {}

    async def run(self) -> None:
        """Keep `totals` fresh until cancelled; a broker that does not answer leaves them as they were."""
        while not being_cancelled():
            with contextlib.suppress(BrokerDown):  # `membership` says so
                self.totals = await self.read_totals()
            await asyncio.sleep(REFRESH_S)

    async def last(self, line: str, conversation: str) -> Turn | None:
        """The conversation's last turn, else its line's."""
        with broker_errors():
            raw: Any = await self._recall([keys.turn(conversation), keys.latest(line)], [keys.turn("")])
        return decode_turn(raw) if raw else None

    async def keep(self, kept: Kept) -> None:
        """Remember an answer that has ended; one command."""
        turn = kept.turn
        tokens = turn.prompt_tokens + turn.output_tokens
        names = [
            keys.turn(turn.conversation), keys.latest(kept.line), keys.why(turn.request), keys.whys(kept.agent),
            keys.MISSES, keys.home(turn.conversation),
        ]  # fmt: skip
        arguments: list[str | bytes | int] = [
            turn.request, turn.conversation, encode_turn(turn), self._lifetime_ms, orjson.dumps(kept.why),
            WHY_LIFETIME_MS, WHYS_KEPT, kept.cause.value, kept.lost_tokens, kept.lost_ms, turn.worker, kept.slot,
            tokens,
        ]  # fmt: skip
        with broker_errors():
            used_ms: Any = await self._keep(names, arguments)
        self._remembered.lives(turn.conversation, Home(turn.worker, tokens, used_ms) if used_ms else None)

    async def why(self, request_id: str) -> Why | None:
        """The account of a request of the last hour."""
        return next(iter(await self._accounts([request_id])), None)

    async def whys(self, agent: str) -> list[Why]:
        """The accounts of an agent's late requests, newest first."""
        with broker_errors():
            found: Any = await self._redis.lrange(keys.whys(agent), 0, -1)
        return await self._accounts([request.decode() for request in found])

    async def read_totals(self) -> Totals:
        """cause -> count, tokens and ms of all misses; turns that lost nothing are not among them."""
        with broker_errors():
            found: Any = await self._redis.hgetall(keys.MISSES)
        values = {name.decode(): int(value) for name, value in found.items()}
        names = [cause.value for cause in Cause if cause is not Cause.NONE and f"{cause}:count" in values]
        return {name: {what: values.get(f"{name}:{what}", 0) for what in ("count", "tokens", "ms")} for name in names}

    async def _accounts(self, requests: Sequence[str]) -> list[Why]:
        with broker_errors():
            found: Any = await self._redis.mget([keys.why(request) for request in requests]) if requests else []
        return [orjson.loads(raw) for raw in found if raw]


def encode_turn(turn: Turn) -> bytes:
    """A turn as JSON; some 25 bytes a message."""
    return orjson.dumps(turn)


def decode_turn(raw: bytes) -> Turn | None:
    """The inverse of `encode_turn`; None for what another version wrote."""
    try:
        fields = orjson.loads(raw)
        chain = fields["chain"]
        fields["chain"] = Chain(chain["system"], chain["tools"], tuple(chain["messages"]), tuple(chain["characters"]))
        fields["marks"] = tuple((count, tokens) for count, tokens in fields["marks"])
        return Turn(**fields)
    except (ValueError, KeyError, TypeError):
        return None
