"""The workers as placement sees them, made once for each snapshot.

Owns: what is reckoned for a worker and not for a job: its speeds, its share of the conversations, its ring.
Never: a job.

A worker whose speed no answer has shown yet is taken to be as fast as the others, or it would never be tried.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from scheduler.contract import ClusterView, Rates, StoreInfo, WorkerInfo
from scheduler.policy.admission import able, serving
from scheduler.policy.ring import Ring

USUAL_NEW_TOKENS = 2000  # of a turn, where the speeds of workers are compared
USUAL_OUTPUT_TOKENS = 200
RETURNS = 0.5  # chance that a conversation comes back to the slot that was taken from it
UNKNOWN = Rates()
CERTAIN_FIT = 1.1  # an estimate of a prompt's length may fall short by so much


@dataclass(frozen=True, slots=True)
class Held:
    """A conversation in a slot; `saved_tokens` of it also lie in the store."""

    tokens: int
    saved_tokens: int


@dataclass(frozen=True, slots=True)
class Site:
    """A worker that takes work. `prompt_limit_tokens` 0: not known; `restore_token_ms` None: nothing is restored.

    Workers of one `store` ("": not known) find what another one saved. `displaced_ms` is what it costs later that a
    conversation loses its slot there now.
    """

    worker: str
    slots: int
    homes: int
    token_ms: float
    output_token_ms: float
    prompt_limit_tokens: int
    restore_token_ms: float | None
    store: str
    displaced_ms: float
    held: Mapping[str, Held]

    @property
    def weight(self) -> float:
        """Share of the conversations: its slots, the faster the more."""
        usual_ms = USUAL_NEW_TOKENS * self.token_ms + USUAL_OUTPUT_TOKENS * self.output_token_ms
        return self.slots * 1000 / usual_ms


@dataclass(frozen=True)
class Fleet:
    """All workers that take work now."""

    now_ms: int
    sites: Mapping[str, Site]

    @cached_property
    def homes(self) -> int:
        return sum(site.homes for site in self.sites.values())

    @cached_property
    def weight(self) -> float:
        return sum(site.weight for site in self.sites.values())

    @cached_property
    def ring(self) -> Ring:
        return Ring((site.worker, site.weight) for site in self.sites.values())

    @cached_property
    def _windows(self) -> tuple[float, float]:
        """The narrowest and the widest; one that is not known may fit any prompt."""
        windows = [site.prompt_limit_tokens or math.inf for site in self.sites.values()]
        return min(windows, default=math.inf), max(windows, default=math.inf)

    def fitting_prompt(self, prompt_tokens: int) -> "Fleet":
        """Those whose window such a prompt fits; the widest when it fits none, for `prompt_tokens` is an estimate."""
        narrowest, widest = self._windows
        needed = min(prompt_tokens * CERTAIN_FIT, widest)
        if needed <= narrowest:
            return self
        return Fleet(self.now_ms, {n: s for n, s in self.sites.items() if not 0 < s.prompt_limit_tokens < needed})

    def held_at(self, worker: str, conversation: str) -> Held | None:
        site = self.sites.get(worker)
        return site.held.get(conversation) if site else None

    def share_a_store(self, one: str, other: str) -> bool:
        """Whether what one worker saved is found by the other."""
        a, b = self.sites.get(one), self.sites.get(other)
        return a is not None and b is not None and a.store == b.store != ""


class Fleets:
    """The fleets of each model, remembered as long as the snapshot is the same."""

    def __init__(self) -> None:
        self._view = ClusterView(now_ms=0)
        self._made: dict[str, Fleet] = {}

    def of(self, view: ClusterView, model: str) -> Fleet:
        """The workers that take work of `model` now ("": of any)."""
        if view is not self._view:
            self._view, self._made = view, {}
        if model not in self._made:
            self._made[model] = fleet(serving(view, model))
        return self._made[model]


def fleet(view: ClusterView) -> Fleet:
    """The workers of a snapshot that take work now."""
    workers = able(view)
    usual = _usual_rates(worker.info.rates for worker in workers)
    return Fleet(view.now_ms, {w.info.name: _site(w.info, w.homes, usual) for w in workers})


def _site(info: WorkerInfo, homes: int, usual: Rates) -> Site:
    rates = _known_rates(info.rates, usual)
    token_ms = 1000 / rates.prefill_tokens_per_s
    restore_token_ms = _restore_token_ms(info.store)
    losses = [slot.tokens for slot in info.slots if slot.conversation]
    return Site(
        worker=info.name,
        slots=len(info.slots) or 1,
        homes=homes,
        token_ms=token_ms,
        output_token_ms=1000 / rates.decode_tokens_per_s,
        prompt_limit_tokens=info.prompt_limit_tokens,
        restore_token_ms=restore_token_ms,
        store=info.store.place,
        displaced_ms=RETURNS * min(losses, default=0) * min(token_ms, restore_token_ms or token_ms),
        held={slot.conversation: Held(slot.tokens, slot.saved_tokens) for slot in info.slots if slot.conversation},
    )


def _restore_token_ms(store: StoreInfo) -> float | None:
    if store.off or not store.restore_bytes_per_s or not store.bytes_per_token:
        return None
    return 1000 * store.bytes_per_token / store.restore_bytes_per_s


def _usual_rates(measured: Iterable[Rates]) -> Rates:
    rates = list(measured)
    prefill = [r.prefill_tokens_per_s for r in rates if r.prefill_tokens_per_s != UNKNOWN.prefill_tokens_per_s]
    decode = [r.decode_tokens_per_s for r in rates if r.decode_tokens_per_s != UNKNOWN.decode_tokens_per_s]
    return Rates(
        prefill_tokens_per_s=median(prefill) if prefill else UNKNOWN.prefill_tokens_per_s,
        decode_tokens_per_s=median(decode) if decode else UNKNOWN.decode_tokens_per_s,
    )


def _known_rates(rates: Rates, usual: Rates) -> Rates:
    prefill, decode = rates.prefill_tokens_per_s, rates.decode_tokens_per_s
    return Rates(
        prefill_tokens_per_s=usual.prefill_tokens_per_s if prefill == UNKNOWN.prefill_tokens_per_s else prefill,
        decode_tokens_per_s=usual.decode_tokens_per_s if decode == UNKNOWN.decode_tokens_per_s else decode,
    )
