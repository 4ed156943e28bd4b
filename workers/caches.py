"""The caches of one engine run: what its slots hold, and what of it is brought in or saved when.

Owns: bringing a conversation's cache into its slot (saving whose place it takes, restoring its own or its base), and
the books of what each slot holds.
Never: moves a file (`saved`), prices a move (`policy.swap`), gives out slots (`slots`), or tidies (`keeper`).
"""

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from scheduler.contract import (
    Gone,
    Kind,
    Source,
    StopReason,
    StoreInfo,
)
from scheduler.policy import swap
from scheduler.policy.chain import common_messages, tokens_of
from scheduler.policy.eviction import chance, learnt_gap_s
from scheduler.policy.swap import Saved, Speeds
from workers.llama.client import End, EngineClient, Prompt
from workers.meter import Meter, WriteBudget
from workers.saved import SavedCaches
from workers.slots import Held, Slot, SlotTable, Want
from workers.store import Entry, Store, base_name, conversation_name

BASE_WAIT = 10.0  # times the expected prefill; its maker may be slow, but prefilling it beside him would be slower
BASE_WAIT_LEAST_S = 30.0
BASE_RETURNS = 1.0  # whoever made it, others will come with it
ENOUGH = 0.9  # of a prompt: with less in the slot, what is saved may be of more use
LEAST_WAIT_S = 2.0  # for a save that another worker has announced


@dataclass(frozen=True, slots=True)
class Brought:
    """What a request finds in its slot."""

    source: Source
    restored_tokens: int = 0
    restore_ms: int = 0


class Caches:
    """Shared by the threads of a worker. Where nothing is saved or restored, `off` says why and `saved` is None."""

    def __init__(
        self, table: SlotTable, client: EngineClient, store: Store | None, meter: Meter, budget: WriteBudget, off: str
    ) -> None:
        self.table = table
        self.meter = meter
        self.budget = budget
        self.saved = SavedCaches(client, store, meter) if store is not None and not off else None
        self.run = secrets.token_hex(4)  # names this start of the engine
        self._off = off

    @property
    def speeds(self) -> Speeds | None:
        """None where nothing is saved or restored."""
        return self.saved.speeds if self.saved else None

    def info(self) -> StoreInfo:
        return self.meter.info(self._off, self.saved.used_bytes if self.saved else 0)

    # --- a request's way ------------------------------------------------------------------------------------------

    def patience_s(self, want: Want) -> float:
        """What it costs, in seconds, to have this conversation's cache in a second slot; to a side call, which has
        none, to take a conversation's slot and to bring it back."""
        if want.kind is Kind.SIDE:
            return self._displaced_s(min((s.held.tokens for s in self.table.slots if s.held and s.owner), default=0))
        tokens = self._tokens(want)
        speeds, whole_s = self.speeds, self.meter.prefill_s(tokens)
        entry = self._find(conversation_name(want.conversation))
        if speeds is None or entry is None:
            return whole_s
        missing = max(0, tokens - _of_use(entry, want))
        return min(whole_s, speeds.restore_s(entry.size_bytes) + speeds.prefill_s(missing))

    def _displaced_s(self, tokens: int) -> float:
        speeds = self.speeds
        if speeds is None:
            return self.meter.prefill_s(tokens)
        return speeds.save_s(tokens) + speeds.restore_s(speeds.size_bytes(tokens))

    def bring(self, slot: Slot, want: Want, stopped: threading.Event) -> Brought:
        """Make the slot hold as much of the wanted prompt's beginning as pays; it is the conversation's afterwards.

        `stopped` ends a wait for another worker's save.
        """
        held = slot.held
        own = held is not None and held.conversation == want.conversation
        if held is not None and own:
            slot.gone = Gone.HERE
            _came_back(held, want, self.table.clock())
            if held.of_use_for(want.chain) >= ENOUGH * self._tokens(want):
                return Brought(Source.OWN)  # else its history was rewritten, or it went on elsewhere for a while
        elif held is not None:
            self._displace(slot, held, want)
        if self.saved is not None and not own:
            limit_s = max(LEAST_WAIT_S, self.meter.prefill_s(self._tokens(want)))
            self.saved.await_promise(conversation_name(want.conversation), limit_s, stopped)
        in_slot = held.of_use_for(want.chain) if held else 0
        brought = self._bring_saved(slot, want, in_slot)
        if brought is None and own and slot.held is held:
            return Brought(Source.OWN)
        if brought is None:
            brought = Brought(Source.SHARED if in_slot and slot.held is not None else Source.NOTHING)
            slot.held = _held_by(want, slot.held, in_slot)
        return brought

    def _displace(self, slot: Slot, held: Held, want: Want) -> None:
        self.look_again(held)
        holding = held.holding(slot.number, self.table.clock())
        owed = want.kind is Kind.SIDE and swap.owed_to(holding, held.saved_tokens)
        if owed or self.worth_saving(slot, self.table.busy):  # the request that waits for it among them
            self.save(slot)

    def lacks_base(self, brought: Brought, want: Want) -> bool:
        """Whether this conversation found nothing, though a base pays: it makes that, or takes the one that was made
        since it looked."""
        if brought.source is not Source.NOTHING or self.saved is None or not self.saved.may_write:
            return False
        if (speeds := self.speeds) is None:
            return False
        tokens = self._base_tokens(want)
        return self.budget.allows(speeds.size_bytes(tokens)) and swap.worth_a_base(tokens, speeds)

    @contextmanager
    def making_base(self, slot: Slot, want: Want, stopped: threading.Event) -> Iterator[Brought | None]:
        """One at a time makes a base; None: make it now, then `save_base`. Others wait for it, and find it restored."""
        if self.saved is None:
            yield Brought(Source.NOTHING)
            return
        name = base_name(want.chain.base)
        limit_s = max(BASE_WAIT_LEAST_S, BASE_WAIT * self.meter.prefill_s(self._base_tokens(want)))
        with self.saved.making(name, limit_s, stopped) as mine:
            entry = self._find(name)
            brought = self._restore(slot, want, entry) if entry is not None else None
            # Whoever was before may have tried in vain: a base that nobody can save is not made by one after another.
            yield brought or (None if mine and self.saved.may_write else Brought(Source.NOTHING))

    def prompt(self, slot: Slot, want: Want, prompt: Prompt) -> None:
        """The engine begins to prefill this prompt in the slot."""
        held = slot.held = slot.held or Held(want.conversation, want.agent, want.kind, want.chain)
        # What was saved after the place where this prompt differs is no longer what the slot holds.
        held.saved_tokens = min(held.saved_tokens, prompt.cached_tokens)
        held.chain, held.prompt_tokens, held.level = want.chain, prompt.total_tokens, want.level
        held.tokens, held.stop_reason = prompt.cached_tokens, None  # the rest is not there yet
        self.meter.prompt(want.chain.characters[-1], prompt.total_tokens)

    def generating(self, slot: Slot) -> None:
        """The whole prompt is in the slot."""
        if slot.held is not None:
            slot.held.tokens = max(slot.held.tokens, slot.held.prompt_tokens)

    def ended(self, slot: Slot, end: End) -> None:
        """The slot holds prompt and answer now."""
        if slot.held is not None:
            slot.held.tokens = end.prompt_tokens + end.output_tokens
            slot.held.stop_reason = end.stop_reason
        self.meter.prefilled(end.prompt_tokens - end.cached_tokens, end.prefill_ms)
        self.meter.decoded(end.output_tokens, end.decode_ms)
        self.meter.drafted(end.drafted_tokens, end.accepted_tokens)

    # --- saving; the caller holds the slot ------------------------------------------------------------------------

    def worth_saving(self, slot: Slot, waiting: int) -> bool:
        """Whether saving what the slot holds is expected to pay while `waiting` requests stand still for it."""
        held, speeds = slot.held, self.speeds
        if held is None or speeds is None or self.saved is None:
            return False
        if not self.saved.fits(speeds.size_bytes(held.tokens)):
            return False
        return swap.worth_saving(held.holding(slot.number, self.table.clock()), held.saved_tokens, waiting, speeds)

    def look_again(self, held: Held) -> None:
        """The bounds of the store are everybody's: what was saved may have been removed or replaced since."""
        if held.saved_tokens:
            entry = self._find(conversation_name(held.conversation))
            held.saved_tokens = min(held.saved_tokens, entry.tokens if entry is not None else 0)

    def save(self, slot: Slot) -> bool:
        """Save what the slot holds as its conversation's, unless that went on in another slot or worker."""
        held = slot.held
        if held is None:
            return False
        if self.table.went_on(slot) or self._is_outdated(held):
            held.saved_tokens = held.tokens
            return True
        likely = chance(held.holding(slot.number, self.table.clock()), swap.RETURN_S)
        return self._save(slot, held, conversation_name(held.conversation), likely)

    def save_base(self, slot: Slot, want: Want) -> bool:
        """Save what the slot holds, which is a base and nothing else."""
        held, speeds = slot.held, self.speeds
        if held is None or speeds is None or not self._save(slot, held, base_name(want.chain.base), BASE_RETURNS):
            return False
        self.budget.spend(speeds.size_bytes(held.tokens))
        held.saved_tokens = 0  # saved as the base, not as this conversation's
        self.table.wake()  # the keeper, which describes it: others wait for that
        return True

    def promise_all(self) -> None:
        """Say to the other workers that what the slots hold will be saved, before they are given its conversations."""
        if self.saved is not None:
            owners = {slot.owner for slot in self.table.slots if slot.owner is not None}
            self.saved.promise(conversation_name(owner) for owner in owners)

    def settle_promises(self) -> None:
        """Whoever waits for what was promised here goes on: what could be saved has been."""
        if self.saved is not None:
            for what in self.saved.promised:
                self.saved.settle(what)

    def _save(self, slot: Slot, held: Held, what: str, likely: float) -> bool:
        return self.saved is not None and self.saved.save(slot.number, held, what, likely)

    def _is_outdated(self, held: Held) -> bool:
        """The conversation went on elsewhere and was saved there, longer or after a compaction shorter: this older
        cache must not take that one's place."""
        entry = self._find(conversation_name(held.conversation))
        if entry is None or self.saved is None:
            return False
        common = common_messages(held.chain, entry.chain)
        if common == len(held.chain.messages):
            return entry.tokens >= held.tokens
        rests_s = self.table.clock() - held.ended_s
        return common < len(entry.chain.messages) and self.saved.written_since(entry, rests_s)

    # --- restoring ------------------------------------------------------------------------------------------------

    def _bring_saved(self, slot: Slot, want: Want, in_slot: int) -> Brought | None:
        """The best file that can be restored; where one cannot, the other."""
        names = [conversation_name(want.conversation), base_name(want.chain.base)]
        while (entry := self._best(names, want, in_slot)) is not None:
            brought = self._restore(slot, want, entry)
            if brought is not None:
                return brought
            names.remove(entry.what)
            in_slot = in_slot if slot.held is not None else 0
        return None

    def _best(self, names: Sequence[str], want: Want, in_slot: int) -> Entry | None:
        speeds = self.speeds
        if speeds is None:
            return None
        entries = {name: entry for name in names if (entry := self._find(name)) is not None}
        files = [Saved(name, entry.size_bytes, _of_use(entry, want)) for name, entry in entries.items()]
        found = swap.best(files, in_slot, speeds)
        return entries[found.name] if found else None

    def _restore(self, slot: Slot, want: Want, entry: Entry) -> Brought | None:
        """None when it could not be: the slot then holds what it held, or nothing if the engine had begun."""
        if self.saved is None:
            return None
        restored = self.saved.restore(slot.number, entry)
        if restored.emptied:
            slot.held = None
        if not restored.tokens:
            return None
        own = entry.what == conversation_name(want.conversation)
        slot.held = Held(
            want.conversation, want.agent, want.kind, entry.chain, restored.tokens, entry.prompt_tokens,
            saved_tokens=restored.tokens if own else 0,
        )  # fmt: skip
        return Brought(Source.SAVED if own else Source.BASE, restored.tokens, restored.took_ms)

    def _find(self, what: str) -> Entry | None:
        return self.saved.find(what) if self.saved is not None else None

    def _tokens(self, want: Want) -> int:
        """Of the whole prompt, about."""
        return int(want.chain.characters[-1] / self.meter.characters_per_token)

    def _base_tokens(self, want: Want) -> int:
        return tokens_of(want.chain, 0, self._tokens(want))


def _of_use(entry: Entry, want: Want) -> int:
    held = Held("", "", want.kind, entry.chain, entry.tokens, entry.prompt_tokens)
    return held.of_use_for(want.chain)


def _came_back(held: Held, want: Want, now_s: float) -> None:
    if held.stop_reason is StopReason.TOOL_USE:
        held.gap_s = learnt_gap_s(held.gap_s, now_s - held.ended_s)
    held.agent, held.kind = want.agent, want.kind


def _held_by(want: Want, before: Held | None, in_slot: int) -> Held:
    """The slot is another conversation's now; of what it holds only the common beginning counts."""
    if before is None or not in_slot:
        return Held(want.conversation, want.agent, want.kind, want.chain)
    return Held(want.conversation, want.agent, want.kind, before.chain, in_slot, before.prompt_tokens)
