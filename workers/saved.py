"""Moves caches between an engine's slots and the store.

Owns: the save and the restore of one slot, the description that follows a save, and what happens when a file or the
engine fails: it is counted, warned of once for each kind, and costs a prefill, never an answer.
Never: decides what pays (`policy.swap`), knows whose turn it is.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic

import structlog

from infra.errors import EngineError, EngineRefused, StoreError
from scheduler.policy.swap import Speeds
from workers.llama.client import EngineClient
from workers.meter import Meter
from workers.promises import Promises
from workers.slots import Held
from workers.store import SKEW_S, Entry, Store

log = structlog.get_logger(__name__)
PAUSE_S = 30.0  # after a save that failed: a full disk is not full of our next file either


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore put into its slot. `emptied`: it failed after the engine had begun, and the slot holds nothing."""

    tokens: int = 0
    took_ms: int = 0
    emptied: bool = False


class SavedCaches:
    """The store of one engine run. Shared by the threads of a worker; nothing here raises for a file's sake."""

    def __init__(self, client: EngineClient, store: Store, meter: Meter) -> None:
        self._client = client
        self._store = store
        self._meter = meter
        self._promises = Promises(store)
        self._undescribed: SimpleQueue[Entry] = SimpleQueue()
        self._warned: set[str] = set()
        self._paused_until_s = 0.0

    @property
    def speeds(self) -> Speeds | None:
        return self._meter.speeds

    @property
    def used_bytes(self) -> int:
        return self._store.used_bytes

    @property
    def may_write(self) -> bool:
        return monotonic() >= self._paused_until_s

    def find(self, what: str) -> Entry | None:
        return self._store.find(what)

    def written_since(self, entry: Entry, rests_s: float) -> bool:
        """Whether the file was written in the last `rests_s` seconds; not one from before the clock was set back."""
        now_s = self._store.wall()
        return now_s - rests_s < entry.written_s < now_s + SKEW_S

    def fits(self, size_bytes: float) -> bool:
        """Whether the store may hold a file of this size at all."""
        return self._store.fits(size_bytes)

    # --- saving ---------------------------------------------------------------------------------------------------

    def save(self, slot: int, held: Held, what: str, return_chance: float) -> bool:
        """Save what the slot holds under the name `what`; False when it could not be, and for a while is not tried."""
        if not self.may_write:
            return False
        try:
            entry, took_ms = self._write(slot, held, what, return_chance)
        except (StoreError, EngineError) as error:
            self._trouble(error)
            self._paused_until_s = monotonic() + PAUSE_S
            return False
        self._undescribed.put(entry)
        self._meter.saved(entry.size_bytes, entry.tokens, took_ms)
        held.tokens = held.saved_tokens = entry.tokens
        return True

    def describe(self) -> None:
        """Finish the files written since, and keep the store within its bounds; reads each file whole, so off a
        request's path."""
        while (entry := self._next_undescribed()) is not None:
            with self._trouble_told():
                self._store.describe(entry)
            self._promises.release(entry.what)
        with self._trouble_told():
            self._store.sweep_if_due()

    def _next_undescribed(self) -> Entry | None:
        try:
            return self._undescribed.get_nowait()
        except Empty:
            return None

    def _write(self, slot: int, held: Held, what: str, return_chance: float) -> tuple[Entry, float]:
        """A file that is whole, and the milliseconds that it took; nothing is left of one that is not."""
        speeds = self.speeds
        file = self._store.new_file(what, speeds.size_bytes(held.tokens) if speeds else 0)
        try:
            moved = self._client.save(slot, file)
            prompt_tokens = min(held.prompt_tokens, moved.tokens)
            entry = Entry(
                what, file, moved.size_bytes, "", held.chain, prompt_tokens, moved.tokens, return_chance,
                written_s=self._store.wall(),
            )  # fmt: skip
            self._store.written(entry)
        except (StoreError, EngineError):
            with self._trouble_told():
                self._store.remove(file)
            raise
        return entry, moved.took_ms

    # --- restoring ------------------------------------------------------------------------------------------------

    def restore(self, slot: int, entry: Entry) -> Restored:
        """Fill the slot from a file that is what was written; one that is not, or that the engine refuses, goes."""
        began_s = monotonic()
        try:
            self._store.check(entry)
            moved = self._client.restore(slot, entry.file)
        except (StoreError, EngineError) as error:
            self._trouble(error)
            if isinstance(error, StoreError | EngineRefused):  # else the engine is at fault, not the file
                with self._trouble_told():
                    self._store.discard(entry)
            return Restored(emptied=isinstance(error, EngineError))
        took_ms = (monotonic() - began_s) * 1000  # with the reading for the checksum, which a large file makes long
        self._meter.restored(moved.size_bytes, took_ms)
        with self._trouble_told():
            self._store.used(entry)
        return Restored(moved.tokens, round(took_ms))

    # --- what others wait for -------------------------------------------------------------------------------------

    @contextmanager
    def making(self, what: str, limit_s: float, stopped: threading.Event) -> Iterator[bool]:
        """One worker at a time makes `what`; False when it is not this one's turn, or was not in time. What was saved
        inside is waited for by the others until it has its description."""
        with ExitStack() as lock:
            mine = False
            with self._trouble_told():
                mine = lock.enter_context(self._store.making(what, limit_s, stopped))
            yield mine
            if mine:
                self._promises.hand_over(what, lock)

    @property
    def promised(self) -> set[str]:
        return self._promises.names

    def promise(self, names: Iterable[str]) -> None:
        """Say to the other workers that these will be saved."""
        with self._trouble_told():
            for what in names:
                self._promises.give(what)

    def settle(self, what: str) -> None:
        """Whoever waits for `what` goes on, unless it was just written: then when it has its description."""
        if not self._store.is_fresh(what):
            self._promises.release(what)

    def await_promise(self, what: str, limit_s: float, stopped: threading.Event) -> None:
        """While another worker is about to save `what`, wait for it."""
        with self._trouble_told():
            self._promises.wait(what, limit_s, stopped)

    # --- trouble --------------------------------------------------------------------------------------------------

    @contextmanager
    def _trouble_told(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self._trouble(error)

    def _trouble(self, error: StoreError | EngineError) -> None:
        """One warning for each kind; each is counted. An engine's own words may hold a path, not a prompt."""
        self._meter.failed()
        kind = error.kind if isinstance(error, StoreError) else error.code
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("cache_not_moved", kind=kind, reason=error.message)
