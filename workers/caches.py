"""The caches of one engine run: what its slots hold, what lies in the store, and the way between them.

Owns: bringing a conversation's cache into its slot (saving whose place it takes, restoring its own or its base), and
saving what a slot holds. Trouble with a file costs a prefill, never an answer.
Never: decides what pays (`policy.swap`), who gets which slot (`slots`), when the worker tidies (`keeper`).
"""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic

import structlog

from infra.errors import EngineError, EngineLost, StoreError
from scheduler.contract import GenerationRequest, Gone, Message, Source, StopReason, StoreInfo, TextBlock, ToolChoice
from scheduler.policy import swap
from scheduler.policy.chain import chain, common_messages, tokens_of
from scheduler.policy.eviction import chance, learnt_gap_s
from scheduler.policy.swap import Saved, Speeds
from workers.llama.client import End, EngineClient, Prompt
from workers.meter import Meter, WriteBudget
from workers.slots import Held, Slot, SlotTable, Want
from workers.store import Entry, Store, base_name, conversation_name

log = structlog.get_logger(__name__)
PAUSE_S = 30.0  # after a save that failed: a full disk is not full of our next file either
BASE_WAIT = 3.0  # how much longer than expected the making of a base is waited for
BASE_WAIT_LEAST_S = 5.0
NOBODY = Message(role="user", content=(TextBlock(text="."),))


@dataclass(frozen=True, slots=True)
class Brought:
    """What a request finds in its slot."""

    source: Source
    restored_tokens: int = 0
    restore_ms: int = 0


class Caches:
    """Shared by the threads of a worker. `store` is None, or `off` says why, where nothing is saved or restored."""

    def __init__(
        self, table: SlotTable, client: EngineClient, store: Store | None, meter: Meter, budget: WriteBudget, off: str
    ) -> None:
        self.table = table
        self.meter = meter
        self.budget = budget
        self.off = off
        self.run = secrets.token_hex(4)  # names this start of the engine
        self._client = client
        self._store = store
        self._undescribed: SimpleQueue[Entry] = SimpleQueue()
        self._warned: set[str] = set()
        self._paused_until_s = 0.0

    @property
    def speeds(self) -> Speeds | None:
        """None where nothing is saved or restored."""
        return None if self.off or self._store is None else self.meter.speeds

    def info(self) -> StoreInfo:
        return self.meter.info(self.off, self._store.used_bytes if self._store else 0)

    # --- a request's way ------------------------------------------------------------------------------------------

    def copy_s(self, want: Want) -> float:
        """What it costs to have this conversation's cache in a second slot, in seconds."""
        tokens = int(want.chain.characters[-1] / self.meter.characters_per_token)
        speeds, whole_s = self.speeds, self.meter.prefill_s(tokens)
        entry = self._find(conversation_name(want.conversation))
        if speeds is None or entry is None:
            return whole_s
        missing = max(0, tokens - self._of_use(entry, want))
        return min(whole_s, speeds.restore_s(entry.size_bytes) + speeds.prefill_s(missing))

    def bring(self, slot: Slot, want: Want) -> Brought:
        """Make the slot hold as much of the wanted prompt's beginning as pays; it is the conversation's afterwards."""
        held = slot.held
        if held is not None and held.conversation == want.conversation:
            slot.gone = Gone.HERE
            _came_back(held, want, self.table.clock())
            return Brought(Source.OWN)
        if held is not None and self._worth_saving(slot, held):
            self.save(slot)
        in_slot = held.of_use_for(want.chain) if held else 0
        entry = self._best(want, in_slot)
        brought = self._restore(slot, want, entry) if entry is not None else None
        if brought is None:
            brought = Brought(Source.SHARED if in_slot and slot.held is not None else Source.NOTHING)
            slot.held = _held_by(want, slot.held, in_slot)
        return brought

    def lacks_base(self, brought: Brought, want: Want) -> bool:
        """Whether this conversation is the first one with its base, and saving that base pays."""
        speeds = self.speeds
        if speeds is None or brought.source is not Source.NOTHING or not self._may_write():
            return False
        tokens = self._base_tokens(want)
        affordable = self.budget.allows(tokens * speeds.bytes_per_token)
        return affordable and swap.worth_a_base(tokens, speeds) and self._find(base_name(want.chain.base)) is None

    @contextmanager
    def making_base(self, slot: Slot, want: Want, stopped: threading.Event) -> Iterator[Brought | None]:
        """One at a time makes a base; None: make it now, then `save_base`. Others wait for it, and find it restored."""
        speeds, store = self.speeds, self._store
        if speeds is None or store is None:
            yield Brought(Source.NOTHING)
            return
        limit_s = max(BASE_WAIT_LEAST_S, BASE_WAIT * speeds.prefill_s(self._base_tokens(want)))
        name = base_name(want.chain.base)
        try:
            with store.making(name, limit_s, stopped) as mine:
                entry = self._find(name)
                brought = self._restore(slot, want, entry) if entry is not None else None
                yield brought or (None if mine else Brought(Source.NOTHING))
        except StoreError as error:
            self._trouble(error)
            yield Brought(Source.NOTHING)

    def prompt(self, slot: Slot, want: Want, prompt: Prompt) -> None:
        """The engine begins to prefill this prompt in the slot."""
        held = slot.held = slot.held or Held(want.conversation, want.agent, want.kind, want.chain)
        # What was saved after the place where this prompt differs is no longer what the slot holds.
        held.saved_tokens = min(held.saved_tokens, prompt.cached_tokens)
        held.chain, held.prompt_tokens = want.chain, prompt.total_tokens
        held.tokens, held.stop_reason = prompt.total_tokens, None
        self.meter.prompt(want.chain.characters[-1], prompt.total_tokens)

    def ended(self, slot: Slot, end: End) -> None:
        """The slot holds prompt and answer now."""
        if slot.held is not None:
            slot.held.tokens = end.prompt_tokens + end.output_tokens
            slot.held.stop_reason = end.stop_reason
        self.meter.prefilled(end.prompt_tokens - end.cached_tokens, end.prefill_ms)

    # --- saving ---------------------------------------------------------------------------------------------------

    def save(self, slot: Slot) -> bool:
        """Save what the slot holds as its conversation's; the caller holds the slot."""
        held = slot.held
        if held is None:
            return False
        if self._is_outdated(held):
            held.saved_tokens = held.tokens
            return True
        return self._save(slot, held, conversation_name(held.conversation))

    def save_base(self, slot: Slot, want: Want) -> bool:
        """Save what the slot holds, which is a base and nothing else."""
        held = slot.held
        if held is None or not self._save(slot, held, base_name(want.chain.base)):
            return False
        self.budget.spend(held.tokens * self.meter.info("", 0).bytes_per_token)
        held.saved_tokens = 0  # saved as the base, not as this conversation's
        return True

    def describe(self) -> None:
        """Finish the files written since; reads each one whole, so off a request's path."""
        store = self._store
        while store is not None:
            try:
                entry = self._undescribed.get_nowait()
            except Empty:
                return
            try:
                store.describe(entry)
                store.sweep_if_due()
            except StoreError as error:
                self._trouble(error)

    def _save(self, slot: Slot, held: Held, what: str) -> bool:
        store, speeds = self._store, self.speeds
        if store is None or speeds is None or not self._may_write():
            return False
        try:
            file = store.new_file(what, int(held.tokens * speeds.bytes_per_token))
            entry, took_ms = self._write(store, slot, held, what, file)
        except (StoreError, EngineError) as error:
            self._trouble(error)
            self._paused_until_s = monotonic() + PAUSE_S
            return False
        self._undescribed.put(entry)
        self.meter.saved(entry.size_bytes, entry.tokens, took_ms)
        held.tokens = held.saved_tokens = entry.tokens
        return True

    def _write(self, store: Store, slot: Slot, held: Held, what: str, file: str) -> tuple[Entry, float]:
        """A file that is whole, and the milliseconds that it took; nothing is left of one that is not."""
        likely = chance(held.holding(slot.number, self.table.clock()), swap.RETURN_S)
        try:
            moved = self._client.save(slot.number, file)
            prompt_tokens = min(held.prompt_tokens, moved.tokens)
            entry = Entry(what, file, moved.size_bytes, "", held.chain, prompt_tokens, moved.tokens, likely)
            store.written(entry)
        except (StoreError, EngineError):
            self._quietly(lambda: store.remove(file))
            raise
        return entry, moved.took_ms

    def _is_outdated(self, held: Held) -> bool:
        """The conversation went on elsewhere and was saved there: this older cache must not take that one's place."""
        entry = self._find(conversation_name(held.conversation))
        if entry is None or entry.tokens < held.tokens:
            return False
        return common_messages(held.chain, entry.chain) == len(held.chain.messages)

    def _may_write(self) -> bool:
        return monotonic() >= self._paused_until_s

    def _worth_saving(self, slot: Slot, held: Held) -> bool:
        speeds = self.speeds
        if speeds is None or not self._may_write():
            return False
        waiting = self.table.busy  # the request that needs the slot among them
        return swap.worth_saving(held.holding(slot.number, self.table.clock()), held.saved_tokens, waiting, speeds)

    # --- restoring ------------------------------------------------------------------------------------------------

    def _best(self, want: Want, in_slot: int) -> Entry | None:
        speeds = self.speeds
        if speeds is None:
            return None
        names = (conversation_name(want.conversation), base_name(want.chain.base))
        entries = {name: entry for name in names if (entry := self._find(name)) is not None}
        files = [Saved(name, e.size_bytes, self._of_use(e, want)) for name, e in entries.items()]
        found = swap.best(files, in_slot, speeds)
        return entries[found.name] if found else None

    def _restore(self, slot: Slot, want: Want, entry: Entry) -> Brought | None:
        """None when it could not be: the slot then holds what it held, or nothing if the engine had begun."""
        store, began_s = self._store, monotonic()
        if store is None:
            return None
        try:
            store.check(entry)
            moved = self._client.restore(slot.number, entry.file)
        except (StoreError, EngineError) as error:
            if isinstance(error, EngineError):
                slot.held = None
            self._trouble(error)
            if not isinstance(error, EngineLost):
                self._quietly(lambda: store.discard(entry))
            return None
        own = entry.what == conversation_name(want.conversation)
        slot.held = Held(
            want.conversation, want.agent, want.kind, entry.chain, moved.tokens, entry.prompt_tokens,
            saved_tokens=moved.tokens if own else 0,
        )  # fmt: skip
        self.meter.restored(moved.size_bytes, moved.took_ms)
        self._quietly(lambda: store.used(entry))
        took_ms = round((monotonic() - began_s) * 1000)
        return Brought(Source.SAVED if own else Source.BASE, moved.tokens, took_ms)

    def _find(self, what: str) -> Entry | None:
        return self._store.find(what) if self._store is not None else None

    def _of_use(self, entry: Entry, want: Want) -> int:
        held = Held("", "", want.kind, entry.chain, entry.tokens, entry.prompt_tokens)
        return held.of_use_for(want.chain)

    def _base_tokens(self, want: Want) -> int:
        whole = int(want.chain.characters[-1] / self.meter.characters_per_token)
        return tokens_of(want.chain, 0, whole)

    # --- trouble --------------------------------------------------------------------------------------------------

    def _quietly(self, act: Callable[[], None]) -> None:
        try:
            act()
        except StoreError as error:
            self._trouble(error)

    def _trouble(self, error: StoreError | EngineError) -> None:
        """One warning for each kind; each is counted. An engine's own words may hold a path, not a prompt."""
        self.meter.failed()
        kind = error.kind if isinstance(error, StoreError) else error.code
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("cache_not_moved", kind=kind, reason=error.message)


def base_request(request: GenerationRequest) -> GenerationRequest:
    """The shortest request with the same base: what all conversations of a kind begin with, and hardly more."""
    changes = {"messages": (NOBODY,), "max_tokens": 1, "stop_sequences": (), "tool_choice": ToolChoice()}
    return request.model_copy(update=changes)


def base_want(want: Want, request: GenerationRequest) -> Want:
    """Who wants the base of `request`, for the books of the slot."""
    return Want(want.conversation, want.agent, want.kind, chain(base_request(request)))


def _came_back(held: Held, want: Want, now_s: float) -> None:
    if held.stop_reason is StopReason.TOOL_USE:
        held.gap_s = learnt_gap_s(held.gap_s, now_s - held.ended_s)
    held.agent, held.kind = want.agent, want.kind


def _held_by(want: Want, before: Held | None, in_slot: int) -> Held:
    """The slot is another conversation's now; of what it holds only the common beginning counts."""
    if before is None or not in_slot:
        return Held(want.conversation, want.agent, want.kind, want.chain)
    return Held(want.conversation, want.agent, want.kind, before.chain, in_slot, before.prompt_tokens)
