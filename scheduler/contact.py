"""This API process's sign of life, and how long the broker has answered it without a pause.

Owns: saying each second that the process lives, in a task that nothing else can hold up, and judging by single
commands whether the broker was away.
Never: decides who is dead (`recovery`).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic

from infra.errors import BrokerDown
from infra.redis_client import being_cancelled

PERIOD_S = 1.0
SLOW_S = 1.0  # a command that takes longer means that the broker was away


class Contact:
    """One process's contact with the broker."""

    def __init__(self, announce: Callable[[], Awaitable[None]]) -> None:
        """`announce` says that this process lives; it raises BrokerDown."""
        self._announce = announce
        self._since_s: float | None = None

    async def run(self) -> None:
        """Announce each second until cancelled."""
        while not being_cancelled():
            await self.announce_once()
            await asyncio.sleep(PERIOD_S)

    async def announce_once(self) -> None:
        """One sign of life; one that fails ends the contact."""
        with contextlib.suppress(BrokerDown), self.watched():
            await self._announce()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Around one command or one pipeline: one that fails or is slow ends the contact."""
        started_s = monotonic()
        try:
            yield
        except BrokerDown:
            self._since_s = None
            raise
        now_s = monotonic()
        if now_s - started_s > SLOW_S:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s

    @property
    def unbroken_s(self) -> float:
        """For how many seconds the broker has answered without a pause."""
        return 0.0 if self._since_s is None else monotonic() - self._since_s
