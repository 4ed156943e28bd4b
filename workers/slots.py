"""Who holds which slot.

Owns: the slot table of one engine: sticky per conversation, an empty slot next, else the one whose loss costs least;
one request per slot at a time (two requests pinned to one slot can stall the engine for minutes).
Never: talks to the engine, or judges what a cache is worth (`policy.eviction`). A held slot gives itself back.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from infra.errors import EngineLost, Refused
from infra.observability import metrics
from scheduler.contract import Gone, Kind, SlotInfo, StopReason
from scheduler.policy.chain import Chain, common_tokens
from scheduler.policy.eviction import WORTHLESS_TOKENS, Holding, value, victim

HOLD_LIMIT_S = 30.0
KEPT_LIMIT_S = 150.0  # longer than the longest save
DEFAULT_LEVEL = 5
REMEMBERED = 4096  # conversations whose loss can still be explained


def _at_once() -> float:
    """A copy costs nothing."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Want:
    """Who needs a slot, for which prompt."""

    conversation: str
    agent: str
    kind: Kind
    chain: Chain
    level: int = DEFAULT_LEVEL


@dataclass(slots=True)
class Held:
    """What a slot's cache holds: `tokens` in all, of which `prompt_tokens` are of the prompt `chain`.

    `saved_tokens` of them lie in the store too. `ended_s` is when its last answer ended, on the table's clock.
    """

    conversation: str
    agent: str
    kind: Kind
    chain: Chain
    tokens: int = 0
    prompt_tokens: int = 0
    saved_tokens: int = 0
    stop_reason: StopReason | None = None
    ended_s: float = 0.0
    gap_s: float | None = None
    level: int = DEFAULT_LEVEL

    def holding(self, slot: int, now_s: float) -> Holding:
        """What would be lost with it."""
        gap_s = self.gap_s if self.stop_reason is StopReason.TOOL_USE else None
        return Holding(slot, self.kind, self.tokens, self.stop_reason, now_s - self.ended_s, gap_s)

    def of_use_for(self, chain: Chain) -> int:
        """Tokens of a prompt that are held already, about."""
        return min(self.tokens, common_tokens(self.chain, self.prompt_tokens, chain))


@dataclass(slots=True)
class Slot:
    """One sequence of the engine. `owner` is the conversation it is kept for; what it holds outlives its owner.

    `kept` marks it as taken by the worker itself, which saves it: that takes a moment, not an answer's time.
    """

    number: int
    owner: str | None = None
    busy: bool = False
    kept: bool = False
    side: bool = False  # its present holder is a side call
    held: Held | None = None
    gone: Gone = Gone.NEW  # to its present holder: why it did not find its own cache here


@dataclass(slots=True)
class SlotTable:
    """The slots of one engine, shared by the threads of a worker. The last `scratch` of them are for side calls."""

    count: int
    scratch: int = 0
    clock: Callable[[], float] = monotonic
    slots: list[Slot] = field(init=False)
    evictions: int = field(init=False, default=0)
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)
    _lost: OrderedDict[str, Gone] = field(init=False, default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.slots = [Slot(number) for number in range(self.count)]

    @contextmanager
    def hold(self, want: Want, patience_s: Callable[[], float] = _at_once) -> Iterator[Slot]:
        """A slot of one's own for one request: the conversation's, else an empty one, else the least valuable.

        `patience_s` tells how long it may wait for its own slot while that is answering, or a side call for another
        one's, before it takes somebody else's.
        What it holds is still its last holder's when the conversation is a new one there; whoever brings the cache in
        sets `held`. Raises EngineLost when none comes free within HOLD_LIMIT_S; the pool starts no more tasks than
        there are slots, so that means a slot was never given back. Raises Refused for a warm-up when no slot is empty.
        """
        slot = self._take(want, patience_s)
        try:
            yield slot
        finally:
            self._give_back(slot, used=True)

    @contextmanager
    def keep(self, choose: Callable[[list[Slot]], Slot | None]) -> Iterator[Slot | None]:
        """A slot for the worker itself, as `choose` picks it from those that nobody uses; requests wait for it."""
        with self._changed:
            slot = choose([slot for slot in self.slots if not slot.busy])
            if slot is not None:
                slot.busy = slot.kept = True
        try:
            yield slot
        finally:
            if slot is not None:
                self._give_back(slot, used=False)

    def free(self, slot: Slot) -> None:
        """The slot belongs to nobody any more; what it holds may still serve as somebody's base."""
        with self._changed:
            if slot.owner is not None:
                self._remember(slot.owner, Gone.IDLE)
            slot.owner = None

    def went_on(self, slot: Slot) -> bool:
        """Whether the conversation of what the slot holds was asked later in another slot."""
        held = slot.held
        with self._changed:
            others = [other for other in self.slots if held and other is not slot and other.owner == held.conversation]
            return any(other.busy or (other.held and held and other.held.ended_s > held.ended_s) for other in others)

    def wait(self, timeout_s: float) -> None:
        """Until a slot was given back, `timeout_s` at most."""
        with self._changed:
            self._changed.wait(timeout_s)

    def wake(self) -> None:
        """Let those who wait look again."""
        with self._changed:
            self._changed.notify_all()

    @property
    def busy(self) -> int:
        """How many are answering now."""
        with self._changed:
            return sum(slot.busy and not slot.kept for slot in self.slots)

    def idle(self) -> tuple[tuple[Held, float], ...]:
        """What the slots that nobody uses hold of their owners, each with the seconds since its last answer ended."""
        with self._changed:
            now_s = self.clock()
            idle = [(slot.held, slot.owner) for slot in self.slots if not slot.busy]
            return tuple((held, now_s - held.ended_s) for held, owner in idle if held and held.conversation == owner)

    def snapshot(self) -> tuple[SlotInfo, ...]:
        with self._changed:
            return tuple(_info(slot) for slot in self.slots)

    def _give_back(self, slot: Slot, *, used: bool) -> None:
        with self._changed:
            if used and slot.held is not None:
                slot.held.ended_s = self.clock()
            slot.busy = slot.kept = False
            self._changed.notify_all()

    def _take(self, want: Want, patience_s: Callable[[], float]) -> Slot:
        # Before the lock: it may read the store, and a folder that hangs must not stop the heartbeat's snapshot.
        limit_s = min(patience_s(), HOLD_LIMIT_S) if self._may_wait(want) else 0.0
        with self._changed:
            self._wait_for_own(want, limit_s)
            self._wait_for_worthless(want, limit_s)
            self._changed.wait_for(lambda: self._has_idle() or not any(s.kept for s in self.slots), KEPT_LIMIT_S)
            if not self._changed.wait_for(self._has_idle, HOLD_LIMIT_S):
                raise EngineLost("no slot came free; the worker's slots are all held")
            slot = self._choose(want)
            slot.busy, slot.side = True, want.kind is Kind.SIDE
            self._owned_by(slot, want)
            return slot

    def _may_wait(self, want: Want) -> bool:
        with self._changed:
            return want.kind is Kind.SIDE or any(s.busy and s.owner == want.conversation for s in self.slots)

    def _wait_for_own(self, want: Want, limit_s: float) -> None:
        """A second request of one conversation waits as long as a copy of its cache would cost, then takes a copy: so
        it never takes more than twice the time of the better choice. One that is only being saved is waited for."""

        def own() -> list[Slot]:
            return [slot for slot in self.slots if slot.owner == want.conversation]

        self._changed.wait_for(lambda: not any(slot.kept for slot in own()), KEPT_LIMIT_S)
        if own() and all(slot.busy for slot in own()):
            self._changed.wait_for(lambda: any(not slot.busy for slot in own()), limit_s)

    def _wait_for_worthless(self, want: Want, limit_s: float) -> None:
        """A side call takes no living conversation's slot while a scratch slot will come free, nor, without one, while
        another side call is answering, for as long as making room would take: thirty titles at once displace one
        conversation, not all."""
        if want.kind is not Kind.SIDE or self._has_worthless():
            return
        if self.scratch:
            self._changed.wait_for(self._has_worthless, HOLD_LIMIT_S)
        elif self._a_side_call_answers():
            self._changed.wait_for(self._has_worthless, limit_s)

    def _has_idle(self) -> bool:
        return any(not slot.busy for slot in self.slots)

    def _a_side_call_answers(self) -> bool:
        return any(slot.busy and slot.side for slot in self.slots)

    def _is_scratch(self, slot: Slot) -> bool:
        return slot.number >= self.count - self.scratch

    def _has_worthless(self) -> bool:
        now_s = self.clock()
        return any(not slot.busy and value(_holding(slot, now_s)) <= WORTHLESS_TOKENS for slot in self.slots)

    def _choose(self, want: Want) -> Slot:
        idle = [slot for slot in self.slots if not slot.busy]
        own = [slot for slot in idle if slot.owner == want.conversation]
        if own:
            return max(own, key=lambda slot: (_of_use(slot, want.chain), slot.held.ended_s if slot.held else 0.0))
        if want.kind is not Kind.SIDE:
            idle = [slot for slot in idle if not self._is_scratch(slot)] or idle
        empty = [slot for slot in idle if slot.owner is None]
        if empty:
            # Of no use to this one, what a slot holds may still be another's base: the emptiest goes first.
            return max(empty, key=lambda slot: (_of_use(slot, want.chain), -_tokens(slot), -slot.number))
        if want.kind is Kind.WARM:
            raise Refused("every slot is somebody's; nothing is warmed up at a conversation's cost")
        now_s = self.clock()
        holdings = [_holding(slot, now_s) for slot in idle]
        return self.slots[victim(holdings, {slot.number: _of_use(slot, want.chain) for slot in idle})]

    def _owned_by(self, slot: Slot, want: Want) -> None:
        if want.kind is Kind.WARM:
            slot.gone = Gone.NEW
            return  # what it leaves behind is for whoever comes
        if slot.owner == want.conversation:
            slot.gone = Gone.HERE
            return
        if slot.owner is not None:
            self._remember(slot.owner, Gone.EVICTED)
            metrics.EVICTIONS.inc()
            self.evictions += 1
        copied = any(other.owner == want.conversation for other in self.slots)
        slot.gone = Gone.COPY if copied else self._lost.pop(want.conversation, Gone.NEW)
        slot.owner = want.conversation

    def _remember(self, conversation: str, gone: Gone) -> None:
        self._lost[conversation] = gone
        self._lost.move_to_end(conversation)
        while len(self._lost) > REMEMBERED:
            self._lost.popitem(last=False)


def _holding(slot: Slot, now_s: float) -> Holding:
    """What its owner would lose; a slot without one loses nothing."""
    if slot.held is None or slot.owner is None:
        return Holding(slot.number, Kind.SIDE, 0, None, 0.0)
    return slot.held.holding(slot.number, now_s)


def _of_use(slot: Slot, chain: Chain) -> int:
    return slot.held.of_use_for(chain) if slot.held else 0


def _tokens(slot: Slot) -> int:
    return slot.held.tokens if slot.held else 0


def _info(slot: Slot) -> SlotInfo:
    held = slot.held
    if held is None or held.conversation != slot.owner:  # its owner's cache is still on its way there
        return SlotInfo(slot=slot.number, conversation=slot.owner, busy=slot.busy and not slot.kept)
    return SlotInfo(
        slot=slot.number,
        conversation=slot.owner,
        agent=held.agent,
        kind=held.kind,
        busy=slot.busy and not slot.kept,
        tokens=held.tokens,
        saved_tokens=held.saved_tokens,
    )
