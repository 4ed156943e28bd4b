"""How fast this engine is with this model, and what the worker did with saved caches.

Owns: measured speeds, each a mean that forgets, the counters that the lease tells, and the budget of writes.
Never: measures by itself; whoever did something tells it what it took.
"""

import threading
from collections.abc import Callable
from time import monotonic

from infra.observability import metrics
from scheduler.contract import Rates, StoreInfo, Tallies
from scheduler.policy.swap import Speeds

SMOOTHING = 0.3
LEAST_MS = 0.1  # shorter times are the clock's own
LEAST_PREFILL_TOKENS = 256  # less measures the overhead of a request
LEAST_DECODED_TOKENS = 16
USUAL_CHARACTERS_PER_TOKEN = 4.0
USUAL_RATES = Rates()
BURST_S = 600.0  # a budget that nobody used is kept for this long


class Meter:
    """Shared by the threads of a worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._decode = 0.0
        self._prefill = self._save = self._restore = self._bytes_per_token = 0.0
        self._characters_per_token = USUAL_CHARACTERS_PER_TOKEN
        self._saves = self._restores = self._failures = 0
        self._drafted = self._accepted = 0
        self.place = ""  # of the store, as `StoreInfo` tells it

    @property
    def speeds(self) -> Speeds | None:
        """None until each has been measured once."""
        with self._lock:
            measured = (self._prefill, self._save, self._restore, self._bytes_per_token)
        return Speeds(*measured) if all(measured) else None

    def prefill_s(self, tokens: int) -> float:
        """How long a prefill of so many tokens takes, 0 while nothing is known."""
        with self._lock:
            return tokens / self._prefill if self._prefill else 0.0

    @property
    def characters_per_token(self) -> float:
        return self._characters_per_token

    def prefilled(self, tokens: int, took_ms: float) -> None:
        if tokens >= LEAST_PREFILL_TOKENS and took_ms > LEAST_MS:
            with self._lock:
                self._prefill = _mean(self._prefill, tokens / took_ms * 1000)

    def decoded(self, tokens: int, took_ms: float) -> None:
        if tokens >= LEAST_DECODED_TOKENS and took_ms > LEAST_MS:
            with self._lock:
                self._decode = _mean(self._decode, tokens / took_ms * 1000)

    def drafted(self, tokens: int, accepted: int) -> None:
        """An answer for which speculative decoding proposed `tokens`, of which `accepted` were right."""
        with self._lock:
            self._drafted += tokens
            self._accepted += accepted
        metrics.DRAFTED.inc(tokens)
        metrics.ACCEPTED.inc(accepted)

    def tallies(self, evictions: int) -> Tallies:
        """As the lease tells them."""
        with self._lock:
            return Tallies(evictions=evictions, drafted_tokens=self._drafted, accepted_tokens=self._accepted)

    @property
    def prefill_tokens_per_s(self) -> float:
        """Of `rates` what a claim needs."""
        return self._prefill or USUAL_RATES.prefill_tokens_per_s

    @property
    def rates(self) -> Rates:
        """As the lease tells them."""
        decode_tokens_per_s = self._decode or USUAL_RATES.decode_tokens_per_s
        return Rates(prefill_tokens_per_s=self.prefill_tokens_per_s, decode_tokens_per_s=decode_tokens_per_s)

    def prompt(self, characters: int, tokens: int) -> None:
        """How long the tokens of this model's prompts are."""
        if tokens >= LEAST_PREFILL_TOKENS:
            with self._lock:
                self._characters_per_token = _mean(self._characters_per_token, characters / tokens)

    def saved(self, size_bytes: int, tokens: int, took_ms: float) -> None:
        with self._lock:
            self._saves += 1
            metrics.SAVES.observe(took_ms / 1000)
            self._save = _mean(self._save, size_bytes / max(took_ms, LEAST_MS) * 1000)
            self._bytes_per_token = _mean(self._bytes_per_token, size_bytes / max(1, tokens))

    def restored(self, size_bytes: int, took_ms: float) -> None:
        with self._lock:
            self._restores += 1
            metrics.RESTORES.observe(took_ms / 1000)
            self._restore = _mean(self._restore, size_bytes / max(took_ms, LEAST_MS) * 1000)

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            metrics.STORE_FAILURES.inc()

    def begin(self, speeds: Speeds) -> None:
        """Known from an earlier start; nothing was done yet."""
        with self._lock:
            self._prefill, self._save = speeds.prefill_tokens_per_s, speeds.save_bytes_per_s
            self._restore, self._bytes_per_token = speeds.restore_bytes_per_s, speeds.bytes_per_token
            self._saves = self._restores = self._failures = 0

    def info(self, off: str, used_bytes: int) -> StoreInfo:
        with self._lock:
            return StoreInfo(
                off=off,
                place=self.place,
                bytes_per_token=round(self._bytes_per_token),
                save_bytes_per_s=round(self._save),
                restore_bytes_per_s=round(self._restore),
                saves=self._saves,
                restores=self._restores,
                failures=self._failures,
                used_bytes=used_bytes,
            )


class WriteBudget:
    """Bytes that may be written for what may never be needed: `per_s` on the mean, ten minutes of it at once."""

    def __init__(self, per_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._per_s = per_s
        self._clock = clock
        self._left = per_s * BURST_S
        self._seen_s = clock()
        self._lock = threading.Lock()

    def allows(self, size_bytes: float) -> bool:
        with self._lock:
            now_s = self._clock()
            self._left = min(self._per_s * BURST_S, self._left + (now_s - self._seen_s) * self._per_s)
            self._seen_s = now_s
            return self._left >= size_bytes

    def spend(self, size_bytes: float) -> None:
        with self._lock:
            self._left -= size_bytes


def _mean(before: float, seen: float) -> float:
    return seen if not before else before + SMOOTHING * (seen - before)
