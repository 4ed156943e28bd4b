"""The requests of all API processes, while somebody looks at those of one.

Owns: telling the others of this process's requests, and hearing of theirs, once a second.
Never: keeps whoever looks waiting: they see what was heard last.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import orjson

from api.ledger import Ledger, Requests, together
from infra.errors import BrokerDown
from infra.redis_client import being_cancelled
from scheduler.ledgers import Ledgers

EVERY_S = 1.0
LOOKS_S = 10.0  # after a look others are still listened to for so long


class Others:
    """One per API process; a background part of it. `name` is what status calls this process."""

    def __init__(self, ledgers: Ledgers, name: str, clock: Callable[[], float] = monotonic) -> None:
        self.own = Ledger(clock)
        self._ledgers, self._name, self._clock = ledgers, name, clock
        self._looked_s = -LOOKS_S
        self._heard: list[tuple[str, Requests]] = []
        self._others = 0

    def look(self) -> dict[str, Any]:
        """The requests of all processes as far as they were heard, `apis`: their names, and how many were not."""
        self._looked_s = self._clock()
        told = [(self._name, self.own.requests()), *self._heard]
        apis, silent = sorted({name for name, _ in told}), max(0, self._others - len(self._heard))
        all_of_them = together(told)
        return {"apis": apis, "apis_silent": silent, "running": all_of_them.running, "recent": all_of_them.recent}

    async def run(self) -> None:
        """Listen and tell until cancelled."""
        while not being_cancelled():
            try:
                await self.turn()
            except BrokerDown:
                self._heard = []  # what they told is old now
            await asyncio.sleep(EVERY_S)

    async def turn(self) -> None:
        """Hear the others if somebody looks here, and tell them if somebody looks anywhere. Raises BrokerDown."""
        looks = self._clock() - self._looked_s < LOOKS_S
        words = await self._ledgers.look() if looks else []  # else what was heard is old when somebody comes again
        self._heard = [told for word in words if (told := _read(word)) is not None]
        watched, processes = await self._ledgers.watched()
        self._others = processes - 1
        if watched:
            await self._ledgers.tell(orjson.dumps([self._name, self.own.requests()]))


def _read(word: bytes) -> tuple[str, Requests] | None:
    """What a process has told; None when it is of a version that tells other things."""
    try:
        name, requests = orjson.loads(word)
        told = str(name), Requests(requests["running"], requests["recent"])
        together([told])  # whoever looks must not be the one who finds out
        return told
    except (ValueError, TypeError, KeyError):
        return None
