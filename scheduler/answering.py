"""Answering count requests, from the worker's side.

Owns: taking a request to count and putting the reply where its asker follows.
Never: counts (`workers.counting` does).
"""

from dataclasses import dataclass
from typing import Any

from redis import Redis

from infra import keys
from infra.redis_client import BLOCK_MS, broker_errors
from scheduler.contract import CountReply

REPLY_LIFETIME_MS = 5000


@dataclass(frozen=True, slots=True)
class CountRequest:
    """A packed request, and the stream its asker follows."""

    reply_to: str
    body: bytes


class CountRequests:
    """The line of requests to count for one model; shared by all its workers. Methods raise BrokerDown."""

    def __init__(self, redis: Redis, reader: Redis, model: str) -> None:
        """`reader` serves blocking reads; its socket timeout must exceed BLOCK_MS."""
        self._redis = redis
        self._reader = reader
        self._line = keys.count(model)

    def take(self) -> CountRequest | None:
        """The next one; None when none came within BLOCK_MS, or its asker no longer waits, or it cannot be read."""
        with broker_errors():
            found: Any = self._reader.blpop([self._line], timeout=BLOCK_MS / 1000)
            if not found:
                return None
            seconds, micros = self._redis.time()
        return _timely(found[1], seconds * 1000 + micros // 1000)

    def reply(self, request: CountRequest, reply: CountReply) -> None:
        """Put the reply where the asker follows; nobody there, it runs out."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.xadd(request.reply_to, {"d": reply.model_dump_json(exclude_none=True)})
        pipeline.pexpire(request.reply_to, REPLY_LIFETIME_MS)
        with broker_errors():
            pipeline.execute()


def _timely(entry: bytes, now_ms: int) -> CountRequest | None:
    """The request in an entry that `lua/ask` wrote, if its asker still waits at `now_ms`."""
    name, _, rest = entry.partition(b"\n")
    until_ms, _, body = rest.partition(b"\n")
    if not until_ms.isdigit() or int(until_ms) <= now_ms:
        return None
    return CountRequest(name.decode(errors="replace"), body)
