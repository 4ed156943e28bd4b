"""A worker's caches on an engine that a test can look into, and conversations that go through them.

Owns: what several modules of tests share of that.
Never: a test.
"""

import threading
from pathlib import Path

from infra.errors import EngineError, EngineLost, EngineRefused, EngineTimeout
from scheduler.contract import Kind, StopReason
from scheduler.policy.swap import Speeds
from tests.doubles.slot_engine import SlotEngine, asked, tokens_of_prompt
from workers.caches import Brought, Caches
from workers.meter import Meter, WriteBudget
from workers.slots import Slot, SlotTable, Want
from workers.store import Entry, Store

SPEEDS = Speeds(prefill_tokens_per_s=1000, save_bytes_per_s=5e7, restore_bytes_per_s=1e9, bytes_per_token=1000)
BASE = "You are an agent. " * 300
REFUSED = EngineRefused("the engine refused: No space", status=500)
ERRORS: list[EngineError] = [REFUSED, EngineLost("gone"), EngineTimeout("slow")]


class House:
    """One worker's caches on an engine that a test can look into."""

    def __init__(self, folder: Path, count: int = 2, space: str = "space", limit_bytes: int = 10**12) -> None:
        folder.mkdir(exist_ok=True)
        self.now_s = 1000.0
        self.engine = SlotEngine(folder, count)
        self.table = SlotTable(count, clock=lambda: self.now_s)
        self.meter = Meter()
        self.meter.begin(SPEEDS)
        self.store = Store(folder, space, limit_bytes, 1e6, lambda: self.now_s)
        self.caches = Caches(self.table, self.engine.client, self.store, self.meter, WriteBudget(1e12), "")

    def turn(
        self,
        name: str,
        *texts: str,
        base: str = BASE,
        kind: Kind = Kind.MAIN,
        reason: StopReason = StopReason.TOOL_USE,
        share: float = 1.0,
        level: int = 5,
    ) -> tuple[Brought, int]:
        """One request to its end, or cancelled in the prefill when `share` of it is less than all. Returns what was
        found, and what the engine reused."""
        want = Want(name, "agent", kind, asked(base, *texts), level)
        with self.table.hold(want) as slot:
            brought = self.caches.bring(slot, want, threading.Event())
            prompt = self.engine.prefill(slot.number, want.chain, share)
            self.caches.prompt(slot, want, prompt)
            if share == 1.0:
                answered = asked(base, *texts, answer(*texts))
                self.caches.ended(slot, self.engine.answer(slot.number, prompt, answered, reason))
        self.now_s += 1
        return brought, prompt.cached_tokens

    def described(self, what: str) -> Entry:
        saved = self.caches.saved
        assert saved is not None
        saved.describe()
        entry = self.store.find(what)
        assert entry is not None
        assert entry.checksum
        return entry

    def slot_of(self, name: str) -> Slot:
        [slot] = [slot for slot in self.table.slots if slot.owner == name]
        return slot

    def save(self, name: str) -> bool:
        """As the keeper does."""
        with self.table.keep(lambda idle: next(slot for slot in idle if slot.owner == name)) as slot:
            assert slot is not None
            return self.caches.save(slot)

    @property
    def failures(self) -> int:
        return self.caches.info().failures


def answer(*texts: str) -> str:
    """What the model says to these."""
    return f"answer to {texts[-1][:20]} " * 30


def talk(name: str, turns: int) -> list[str]:
    """The texts of a conversation at its last user message."""
    texts: list[str] = []
    for number in range(turns):
        texts.append(f"{name} asks for the {number}. time " * 40)
        if number < turns - 1:
            texts.append(answer(*texts))
    return texts


def size(*texts: str, base: str = BASE) -> int:
    return len(tokens_of_prompt(asked(base, *texts)))


def crowd_out(house: House, base: str = "Another base. " * 300) -> None:
    """As many others as there are slots, each worth more than anybody here."""
    for number in range(house.table.count):
        house.turn(f"ff{number}", *talk(f"crowd {number}", 8), base=f"{base} {number}")
