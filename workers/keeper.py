"""Tidies the slots in the gaps between answers.

Owns: the thread that saves what would be lost next, what has doubled, and what nobody has used for long; the freeing of
idle slots; the saves of a drain.
Never: takes a slot that a request uses, decides what a save is worth (`policy.swap`).
"""

import threading
from collections.abc import Callable
from time import monotonic

import structlog

from scheduler.policy.eviction import value, victim
from scheduler.policy.swap import due_for_checkpoint
from workers.caches import Caches
from workers.serving import Serving
from workers.slots import Slot
from workers.store import conversation_name

log = structlog.get_logger(__name__)
TICK_S = 1.0


def keep_forever(serving: Serving, idle_slot_s: float, stopping: threading.Event) -> None:
    """Tidy after each answer, and each second, until `stopping`. Nothing ends it before: nobody starts it again."""
    while not stopping.is_set():
        caches = serving.caches
        if caches is None:
            stopping.wait(TICK_S)
            continue
        caches.table.wait(TICK_S)
        try:
            tidy(caches, idle_slot_s)
        except Exception as error:
            log.warning("not_tidied", error=type(error).__name__)
            stopping.wait(TICK_S)


def tidy(caches: Caches, idle_slot_s: float) -> None:
    """Everything that is due now."""
    _describe(caches)
    while _keep_promise(caches) or _free_one(caches, idle_slot_s) or _save_one(caches):
        _describe(caches)


def leave(caches: Caches) -> None:
    """The worker is about to leave: its conversations will be found in the store, from now on each as soon as it
    rests."""
    caches.promise_all()
    caches.table.wake()


def save_all(caches: Caches, limit_s: float) -> None:
    """Save every conversation that may come back, the most valuable first, for about `limit_s`."""
    ends_s = monotonic() + limit_s
    tried: set[int] = set()
    _describe(caches)
    for held in [slot.held for slot in caches.table.slots if slot.held is not None]:
        caches.look_again(held)  # it may have been left to a fork that came to nothing

    def next_one(idle: list[Slot]) -> Slot | None:
        due = [slot for slot in idle if slot.number not in tried and _worth(caches, slot, 0)]
        return max(due, key=lambda slot: _value(caches, slot), default=None)

    while monotonic() < ends_s:
        with caches.table.keep(next_one) as slot:
            if slot is None:
                break
            tried.add(slot.number)
            caches.save(slot)
        _describe(caches)  # each at once: whoever is killed before the end loses the rest only


def _keep_promise(caches: Caches) -> bool:
    """Save one of the conversations that others wait for; False when none of them rests."""
    saved = caches.saved
    if saved is None or not (names := saved.promised):
        return False

    def rests(idle: list[Slot]) -> Slot | None:
        return next((s for s in idle if s.owner is not None and conversation_name(s.owner) in names), None)

    with caches.table.keep(rests) as slot:
        if slot is None or slot.owner is None:
            for what in names - {conversation_name(s.owner) for s in caches.table.slots if s.owner is not None}:
                saved.settle(what)  # its slot was taken; nothing more of it will come
            return False
        if caches.worth_saving(slot, 0):
            caches.save(slot)
        saved.settle(conversation_name(slot.owner))
    return True


def _free_one(caches: Caches, idle_slot_s: float) -> bool:
    def idle_too_long(idle: list[Slot]) -> Slot | None:
        now_s = caches.table.clock()
        long_idle = (s for s in idle if s.owner and s.held and now_s - s.held.ended_s >= idle_slot_s)
        return next(long_idle, None)

    with caches.table.keep(idle_too_long) as slot:
        if slot is None:
            return False
        if slot.held is not None:
            caches.look_again(slot.held)
        if _worth(caches, slot, 0):
            caches.save(slot)
        caches.table.free(slot)
        return True


def _save_one(caches: Caches) -> bool:
    with caches.table.keep(_due(caches)) as slot:
        speeds = caches.speeds
        if slot is None or slot.held is None or speeds is None:
            return False
        size_bytes = speeds.size_bytes(slot.held.tokens)
        saved = caches.save(slot)
        if saved:
            caches.budget.spend(size_bytes)
        return saved


def _due(caches: Caches) -> Callable[[list[Slot]], Slot | None]:
    """The next victim while every slot has an owner, so that taking its place will cost nothing; else one whose tokens
    have doubled since it was saved, so that a crash costs half of its prefill at most."""

    def choose(idle: list[Slot]) -> Slot | None:
        answering = caches.table.count - len(idle)
        owned = [slot for slot in idle if slot.owner is not None and slot.held is not None]
        now_s = caches.table.clock()
        candidates = [slot for slot in owned if slot.held and _affordable(caches, slot)]
        if owned and len(owned) == len(idle):
            next_victim = victim(s.held.holding(s.number, now_s) for s in owned if s.held)
            candidates.sort(key=lambda slot: slot.number != next_victim)
            if candidates and candidates[0].number == next_victim and _worth(caches, candidates[0], answering):
                return candidates[0]
        doubled = (slot for slot in candidates if _due_for_checkpoint(slot, now_s))
        return next((slot for slot in doubled if _worth(caches, slot, answering)), None)

    return choose


def _due_for_checkpoint(slot: Slot, now_s: float) -> bool:
    held = slot.held
    return held is not None and due_for_checkpoint(held.tokens, held.saved_tokens, now_s - held.ended_s)


def _affordable(caches: Caches, slot: Slot) -> bool:
    speeds = caches.speeds
    return bool(speeds and slot.held and caches.budget.allows(speeds.size_bytes(slot.held.tokens)))


def _worth(caches: Caches, slot: Slot, answering: int) -> bool:
    return slot.owner is not None and caches.worth_saving(slot, answering)


def _describe(caches: Caches) -> None:
    if caches.saved is not None:
        caches.saved.describe()


def _value(caches: Caches, slot: Slot) -> float:
    return value(slot.held.holding(slot.number, caches.table.clock())) if slot.held else 0.0
