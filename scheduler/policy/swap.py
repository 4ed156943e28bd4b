"""When saving a cache, restoring it or removing a saved one pays.

Owns: the price of each in seconds, from measured speeds, and the comparison with a prefill.
Never: knows a file, an engine, a clock; sizes, speeds and times are given.

A saved cache that is restored costs bytes / restore speed; without it the tokens are prefilled again, which costs
tokens / prefill speed. A save costs bytes / save speed once, and for that time the engine's other answers stand still,
so each of them pays it too.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.policy.eviction import OVER_CHANCE, Holding, chance

RETURN_S = 3600.0  # a return within an hour finds the saved cache
LEAST_TOKENS = 256  # less is prefilled faster than its file is found
LEAST_UNSAVED_TOKENS = 128  # each save writes the whole cache anew
DOUBLED = 2.0
OVERDUE = 4.0
QUIET_S = 1.0
SIDE_LOSS = 0.01
MAY_COME = 0.1  # that a request comes in the moment of a save on an idle engine
MOST_FILES = 4096  # each is looked at when the store is tidied
BASE_SHARE = 0.5  # of its prefill's time that saving a base may take, as it is done before the first answer


@dataclass(frozen=True, slots=True)
class Speeds:
    """Measured on this engine with this model; each is greater than 0."""

    prefill_tokens_per_s: float
    save_bytes_per_s: float
    restore_bytes_per_s: float
    bytes_per_token: float

    def prefill_s(self, tokens: int) -> float:
        return tokens / self.prefill_tokens_per_s

    def size_bytes(self, tokens: int) -> int:
        """Of a file that holds so many tokens."""
        return int(tokens * self.bytes_per_token)

    def save_s(self, tokens: int) -> float:
        return tokens * self.bytes_per_token / self.save_bytes_per_s

    def restore_s(self, size_bytes: float) -> float:
        return size_bytes / self.restore_bytes_per_s


@dataclass(frozen=True, slots=True)
class Saved:
    """A file that could be restored: `of_use` of its tokens begin the new prompt."""

    name: str
    size_bytes: int
    of_use: int


def best(files: Iterable[Saved], in_slot: int, speeds: Speeds) -> Saved | None:
    """The file whose restore saves most time over going on from the `in_slot` tokens that the slot holds; None when
    none does."""

    def gain_s(file: Saved) -> float:
        return speeds.prefill_s(file.of_use - in_slot) - speeds.restore_s(file.size_bytes)

    candidates = [file for file in files if file.of_use - in_slot >= LEAST_TOKENS]
    found = max(candidates, key=lambda file: (gain_s(file), file.name), default=None)
    return found if found is not None and gain_s(found) > 0 else None


def worth_saving(holding: Holding, saved_tokens: int, waiting: int, speeds: Speeds) -> bool:
    """Whether a save is expected to win back what it costs: the prefill of what is not saved yet less a restore, times
    the chance of a return, against the time that it takes from the `waiting` requests that stand still meanwhile, and
    from one that may come."""
    unsaved = holding.tokens - saved_tokens
    if unsaved < LEAST_UNSAVED_TOKENS or holding.tokens < LEAST_TOKENS:
        return False
    restore_s = speeds.restore_s(speeds.size_bytes(unsaved))  # the rest is restored in any case
    gain_s = chance(holding, RETURN_S) * (speeds.prefill_s(unsaved) - restore_s)
    return gain_s > speeds.save_s(holding.tokens) * (waiting + MAY_COME)


def owed_to(holding: Holding, saved_tokens: int) -> bool:
    """Whether a conversation that a side call displaces is saved whatever that costs: a title or a summary must not
    cost it more than a hundredth of its cache."""
    alive = chance(holding) > OVER_CHANCE
    return alive and holding.tokens >= LEAST_TOKENS and holding.tokens - saved_tokens > SIDE_LOSS * holding.tokens


def worth_a_base(tokens: int, speeds: Speeds) -> bool:
    """Whether a base of so many tokens is prefilled alone and saved before the first answer that needs it: everyone
    after it restores it. Its save must be short beside the prefill that it stands for."""
    saved_s = BASE_SHARE * speeds.prefill_s(tokens)
    restore_s = speeds.restore_s(tokens * speeds.bytes_per_token)  # not of whole bytes: twice the base, twice the time
    return tokens >= LEAST_TOKENS and saved_s > speeds.save_s(tokens) and saved_s > restore_s


def due_for_checkpoint(tokens: int, saved_tokens: int, idle_s: float) -> bool:
    """A crash may cost half of a conversation's prefill, not all of it: each doubling is saved, so that all saves
    together write at most twice its final size.

    A conversation that has just ended a turn may come back at once and would meet its own save: it is left alone for a
    moment, unless it never rests.
    """
    if tokens < max(LEAST_TOKENS, DOUBLED * saved_tokens):
        return False
    return idle_s >= QUIET_S or (saved_tokens > 0 and tokens >= OVERDUE * saved_tokens)


@dataclass(frozen=True, slots=True)
class Stored:
    """A saved cache in the store, as its removal is decided: `uses` restores so far, `unused_s` since the last use."""

    name: str
    size_bytes: int
    tokens: int
    return_chance: float
    uses: int
    unused_s: float


def to_remove(files: Iterable[Stored], limit_bytes: int, age_s: float) -> list[str]:
    """The names to remove so that what is left holds `limit_bytes` and MOST_FILES at most and nothing that was unused
    for `age_s`; the least valuable first."""
    kept: list[Stored] = []
    removed: list[str] = []
    for file in files:
        if file.unused_s > age_s:
            removed.append(file.name)
        else:
            kept.append(file)
    total = sum(file.size_bytes for file in kept)
    for count, file in enumerate(sorted(kept, key=lambda file: (stored_value(file), file.name))):
        if total <= limit_bytes and len(kept) - count <= MOST_FILES:
            break
        removed.append(file.name)
        total -= file.size_bytes
    return removed


def stored_value(file: Stored) -> float:
    """Expected tokens of prefill that a byte of the file saves: each past use makes another likelier, and silence
    makes it less likely (the same law as `eviction.chance`)."""
    likely = file.return_chance * (1 + file.uses) * RETURN_S / (RETURN_S + max(0.0, file.unused_s))
    return file.tokens * likely / max(1, file.size_bytes)
