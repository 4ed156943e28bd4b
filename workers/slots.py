"""Who holds which slot.

Owns: the slot table of one engine: sticky per conversation, an empty slot next, else the one whose loss costs least;
one request per slot at a time (two requests pinned to one slot can stall the engine for minutes).
Never: talks to the engine, or judges what a cache is worth (`policy.eviction`). A held slot gives itself back.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from infra.errors import EngineLost
from scheduler.contract import Kind, SlotInfo, StopReason
from scheduler.policy.eviction import Holding, learnt_gap_s, victim

HOLD_LIMIT_S = 30.0


@dataclass(slots=True)
class Slot:
    """One sequence of the engine and what it holds. `ended_s` is when its last answer ended, on the table's clock."""

    number: int
    conversation: str | None = None
    agent: str | None = None
    kind: Kind = Kind.MAIN
    busy: bool = False
    tokens: int = 0
    stop_reason: StopReason | None = None
    ended_s: float = 0.0
    gap_s: float | None = None

    def take(self, conversation: str, agent: str, kind: Kind, now_s: float) -> None:
        """The slot is this conversation's from now on, and busy."""
        if self.conversation != conversation:
            self.conversation, self.tokens, self.stop_reason, self.gap_s = conversation, 0, None, None
        elif self.stop_reason is StopReason.TOOL_USE:
            self.gap_s = learnt_gap_s(self.gap_s, now_s - self.ended_s)
        self.agent, self.kind, self.busy = agent, kind, True

    def holding(self, now_s: float) -> Holding:
        """What would be lost with it."""
        gap_s = self.gap_s if self.stop_reason is StopReason.TOOL_USE else None
        return Holding(self.number, self.kind, self.tokens, self.stop_reason, now_s - self.ended_s, gap_s)


class SlotTable:
    """The slots of one engine, shared by the threads of a worker."""

    def __init__(self, slots: int, clock: Callable[[], float] = monotonic) -> None:
        self._slots = [Slot(number) for number in range(slots)]
        self._clock = clock
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, conversation: str, agent: str, kind: Kind = Kind.MAIN) -> Iterator[Slot]:
        """A slot of one's own for one request: the conversation's, else an empty one, else the least valuable.

        Raises EngineLost when none comes free within HOLD_LIMIT_S; the pool starts no more tasks than there are
        slots, so that means a slot was never given back.
        """
        slot = self._take(conversation, agent, kind)
        try:
            yield slot
        finally:
            with self._changed:
                slot.busy = False
                slot.ended_s = self._clock()
                self._changed.notify()

    def snapshot(self) -> tuple[SlotInfo, ...]:
        with self._changed:
            return tuple(
                SlotInfo(slot=s.number, conversation=s.conversation, agent=s.agent, busy=s.busy, tokens=s.tokens)
                for s in self._slots
            )

    def _take(self, conversation: str, agent: str, kind: Kind) -> Slot:
        with self._changed:
            if not self._changed.wait_for(lambda: any(not s.busy for s in self._slots), HOLD_LIMIT_S):
                raise EngineLost("no slot came free; the worker's slots are all held")
            now_s = self._clock()
            slot = self._choose(conversation, now_s)
            slot.take(conversation, agent, kind, now_s)
            return slot

    def _choose(self, conversation: str, now_s: float) -> Slot:
        idle = [slot for slot in self._slots if not slot.busy]
        own = [slot for slot in idle if slot.conversation == conversation]
        if own:
            return max(own, key=lambda slot: slot.ended_s)  # with a copy in two slots, the fresher one
        empty = [slot for slot in idle if slot.conversation is None]
        if empty:
            return empty[0]
        return self._slots[victim(slot.holding(now_s) for slot in idle)]
