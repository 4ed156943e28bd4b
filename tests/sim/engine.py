"""An engine in numbers: slots at fixed rates, and what each slot's cache holds.

Owns: which slot serves a request, how many of its tokens are cached there, and how long it takes. A prefill runs at
`prefill_tokens_per_s` and an answer at `decode_tokens_per_s` in each slot, whatever the others do, as with the paced
stand-in. A base that was prefilled once on an engine is there for all; any other cache is lost with its slot, but for
what a store holds where there is one.
Never: decides which request is served.
"""

from dataclasses import dataclass

from scheduler.contract import Kind, Rates, StopReason
from scheduler.policy.eviction import Holding, learnt_gap_s, victim
from tests.sim.request import Request
from tests.sim.store import Store


@dataclass(slots=True)
class Slot:
    """One sequence, and the conversation whose cache it holds."""

    number: int
    conversation: str = ""
    kind: Kind = Kind.MAIN
    level: int = 0
    tokens: int = 0
    stop_reason: StopReason | None = None
    ended_s: float = 0.0
    gap_s: float | None = None
    request: Request | None = None

    def holding(self, now_s: float) -> Holding:
        """What would be lost with it."""
        gap_s = self.gap_s if self.stop_reason is StopReason.TOOL_USE else None
        return Holding(self.number, self.kind, self.tokens, self.stop_reason, now_s - self.ended_s, gap_s)


class Engine:
    """The slots of one worker."""

    def __init__(self, number: int, slots: int, rates: Rates, window_tokens: int, store: Store | None = None) -> None:
        self.number = number
        self.store = store
        self.rates = rates
        self.window_tokens = window_tokens
        self.slots = [Slot(slot) for slot in range(slots)]
        self.free = slots
        self.changes = 0  # so far, of what the slots hold
        self._prefill_s = 1 / rates.prefill_tokens_per_s
        self._decode_s = 1 / rates.decode_tokens_per_s
        self._slot_of: dict[str, Slot] = {}
        self._bases: set[str] = set()

    def cached_tokens(self, request: Request) -> int:
        """Tokens of its prompt that need no prefill here, were it served now."""
        slot = self._slot_of.get(request.conversation)
        if slot is not None and slot.request is None:
            return min(slot.tokens, request.kept_tokens)
        return request.base_tokens if request.base in self._bases else 0

    def prefill_s(self, tokens: int) -> float:
        return tokens * self._prefill_s

    def service_s(self, new_tokens: int, output_tokens: float) -> float:
        """How long a slot works on so many tokens."""
        return new_tokens * self._prefill_s + output_tokens * self._decode_s

    def begin(self, request: Request, now_s: float) -> float:
        """Give it a slot; returns the seconds that it will take. One slot at least must be free."""
        slot = self._slot_for(request, now_s)
        if slot.request is not None:
            raise AssertionError(f"slot {slot.number} of engine {self.number} is used twice")
        cached, request.ready_s = self.cached_tokens(request), 0.0
        if self.store is not None and slot.conversation != request.conversation:
            cached, request.ready_s = self._swapped(self.store, slot, request, cached, now_s)
        request.prefilled_tokens = request.prompt_tokens - cached
        request.ready_s += self.prefill_s(request.prefilled_tokens)
        self._hand_over(slot, request)
        self._bases.add(request.base)
        self.free -= 1
        self.changes += 1
        request.begun_s = now_s
        return request.ready_s + request.output_tokens * self._decode_s

    def _swapped(
        self, store: Store, slot: Slot, request: Request, cached: int, now_s: float
    ) -> tuple[int, float]:  # fmt: skip
        """Tokens cached and seconds spent when another conversation's slot is taken."""
        waiting = len(self.slots) - self.free + 1
        save_s = store.save(slot.conversation, slot.holding(now_s), waiting) if slot.conversation else 0.0
        cached, restore_s = store.restore(request.conversation, request.kept_tokens, cached)
        return cached, save_s + restore_s

    def end(self, request: Request, now_s: float) -> None:
        """Its answer is complete: the slot is free, and keeps what it holds."""
        slot = self._slot_of[request.conversation]
        if slot.request is not request:
            raise AssertionError(f"slot {slot.number} of engine {self.number} does not serve what has ended")
        slot.request = None
        if request.last and self.store is not None:
            self.store.forget(request.conversation)
        slot.tokens, slot.stop_reason, slot.ended_s = request.held_tokens, request.stop_reason, now_s
        self.free += 1
        self.changes += 1
        request.ended_s = now_s

    def running(self) -> list[Request]:
        """What the slots are serving."""
        return [slot.request for slot in self.slots if slot.request is not None]

    def gap_s(self, conversation: str) -> float | None:
        """How long its tools usually take, once that has been seen here."""
        slot = self._slot_of.get(conversation)
        return slot.gap_s if slot else None

    def _slot_for(self, request: Request, now_s: float) -> Slot:
        own = self._slot_of.get(request.conversation)
        if own is not None and own.request is None:
            return own
        idle = [slot for slot in self.slots if slot.request is None]
        for slot in idle:
            if not slot.conversation:
                return slot
        return self.slots[victim(slot.holding(now_s) for slot in idle)]

    def _hand_over(self, slot: Slot, request: Request) -> None:
        if slot.conversation == request.conversation:
            if slot.stop_reason is StopReason.TOOL_USE:
                slot.gap_s = learnt_gap_s(slot.gap_s, request.arrival_s - slot.ended_s)
        else:
            self._slot_of.pop(slot.conversation, None)
            slot.gap_s = None
        slot.conversation, slot.kind, slot.level = request.conversation, request.kind, request.level
        slot.request = request
        self._slot_of[request.conversation] = slot
