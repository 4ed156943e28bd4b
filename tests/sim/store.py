"""Saved caches in numbers: one store that all workers share.

Owns: how many tokens of each conversation are saved, and what saving and restoring take. Whether either pays is decided
by `scheduler.policy.swap`, as in a worker.
Never: holds up the other answers of an engine while it saves, as a real save does; a base costs nothing to restore.
"""

from scheduler.contract import StoreInfo
from scheduler.policy.eviction import Holding
from scheduler.policy.swap import Saved, Speeds, best, worth_saving

BYTES_PER_TOKEN = 65_536  # a model of 8 billion parameters with its cache in 8 bits
SAVE_BYTES_PER_S = 1_000_000_000
RESTORE_BYTES_PER_S = 2_000_000_000


class Store:
    """Tokens by conversation. `saves` and `restores` count."""

    def __init__(self, prefill_tokens_per_s: float) -> None:
        self.saves = 0
        self.restores = 0
        self._tokens: dict[str, int] = {}
        self._speeds = Speeds(prefill_tokens_per_s, SAVE_BYTES_PER_S, RESTORE_BYTES_PER_S, BYTES_PER_TOKEN)

    def saved_tokens(self, conversation: str) -> int:
        return self._tokens.get(conversation, 0)

    def save(self, conversation: str, holding: Holding, waiting: int) -> float:
        """Seconds that are spent on saving what a slot holds before it is taken; 0 when that is not worth it."""
        if not worth_saving(holding, self.saved_tokens(conversation), waiting, self._speeds):
            return 0.0
        self.saves += 1
        self._tokens[conversation] = holding.tokens
        return self._speeds.save_s(holding.tokens)

    def restore(self, conversation: str, kept_tokens: int, in_slot_tokens: int) -> tuple[int, float]:
        """Tokens of a prompt that need no prefill after what pays is restored, and the seconds that takes."""
        tokens = self.saved_tokens(conversation)
        file = Saved(conversation, self._speeds.size_bytes(tokens), min(tokens, kept_tokens))
        if best([file], in_slot_tokens, self._speeds) is None:
            return in_slot_tokens, 0.0
        self.restores += 1
        return file.of_use, self._speeds.restore_s(file.size_bytes)

    def forget(self, conversation: str) -> None:
        """It is over: as if its file had grown too old."""
        self._tokens.pop(conversation, None)

    def info(self) -> StoreInfo:
        """What a worker's lease says of it."""
        return StoreInfo.model_construct(
            off="",
            place="shared",
            bytes_per_token=BYTES_PER_TOKEN,
            save_bytes_per_s=SAVE_BYTES_PER_S,
            restore_bytes_per_s=RESTORE_BYTES_PER_S,
        )
