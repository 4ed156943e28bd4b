"""How long the broker may be away before it costs an answer.

Owns: the one patience around everything that an answer asks the broker beside its deltas.
Never: asks anything itself.
"""

from collections.abc import Awaitable
from time import monotonic
from typing import TypeVar

from infra.errors import BrokerDown

T = TypeVar("T")
LIMIT_S = 30.0


class BrokerPatience:
    """The patience of one answer."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._away_since_s: float | None = None

    async def ask(self, work: Awaitable[T]) -> T | None:
        """What `work` returns; None when the broker did not answer it, which is to be tried again later.

        Raises BrokerDown once the broker has not answered for `limit_s` seconds, and everything else that `work` does.
        """
        try:
            answer = await work
        except BrokerDown:
            now_s = monotonic()
            self._away_since_s = now_s if self._away_since_s is None else self._away_since_s
            if now_s - self._away_since_s >= self._limit_s:
                raise
            return None
        self._away_since_s = None
        return answer
