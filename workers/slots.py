"""Who holds which slot.

Owns: the slot table of one engine: sticky per conversation, least recently used idle slot otherwise, one request per
slot at a time (two requests pinned to one slot can stall the engine for minutes).
Never: talks to the engine. A held slot gives itself back.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from infra.errors import EngineLost
from scheduler.contract import SlotInfo

HOLD_LIMIT_S = 30.0


@dataclass(slots=True)
class Slot:
    """One sequence of the engine; `used` orders slots by last use."""

    number: int
    conversation: str | None = None
    agent: str | None = None
    busy: bool = False
    tokens: int = 0
    used: int = 0


class SlotTable:
    """The slots of one engine, shared by the threads of a worker."""

    def __init__(self, slots: int) -> None:
        self._slots = [Slot(number) for number in range(slots)]
        self._uses = count(1)
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, conversation: str, agent: str) -> Iterator[Slot]:
        """A slot of one's own for one request: the conversation's, else an empty one, else the longest unused.

        Raises EngineLost when none comes free within HOLD_LIMIT_S; the pool starts no more tasks than there are
        slots, so that means a slot was never given back.
        """
        slot = self._take(conversation, agent)
        try:
            yield slot
        finally:
            with self._changed:
                slot.busy = False
                slot.used = next(self._uses)
                self._changed.notify()

    def snapshot(self) -> tuple[SlotInfo, ...]:
        with self._changed:
            return tuple(
                SlotInfo(slot=s.number, conversation=s.conversation, agent=s.agent, busy=s.busy, tokens=s.tokens)
                for s in self._slots
            )

    def _take(self, conversation: str, agent: str) -> Slot:
        with self._changed:
            if not self._changed.wait_for(lambda: any(not s.busy for s in self._slots), HOLD_LIMIT_S):
                raise EngineLost("no slot came free; the worker's slots are all held")
            slot = min((s for s in self._slots if not s.busy), key=lambda s: _cost(s, conversation))
            if slot.conversation != conversation:
                slot.conversation, slot.tokens = conversation, 0
            slot.agent, slot.busy = agent, True
            return slot


def _cost(slot: Slot, conversation: str) -> tuple[int, int]:
    if slot.conversation == conversation:
        return 0, -slot.used  # with a copy in two slots, the fresher one
    return (1 if slot.conversation is None else 2), slot.used
