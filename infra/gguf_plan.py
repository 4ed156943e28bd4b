"""How many slots of which window fit into a device's memory.

Owns: the sum (weights, KV cache, buffers), the target, and the choice of slots and window. Pure.
Never: reads a file, asks a device, or starts anything.

The rule, where a number is left to it (`auto`):
1. A window is at least LEAST_WINDOW_TOKENS and at most what the model was trained for, in steps of STEP_TOKENS.
2. SLOTS_FIRST slots come first: the largest window at which that many fit. Where they fit at no window, 3, 2, 1.
3. At the largest window what is left becomes more slots, up to MOST_SLOTS. With a window that is given, likewise.
4. A model whose saved slots cannot be restored gets one slot more, for side calls. It is the first thing to go.
More memory never gives fewer slots. A fixed number is taken as it is.

Bytes of a KV cache are exact: llama.cpp allocates it whole, with `--no-kv-unified` one part for each slot. Buffers are
an estimate: the attention mask (float16, window x batch) and the widest activations (float32) of one batch, logits of
each slot, and for a quantised KV type one layer of one slot in float16, as CUDA unpacks it. Seen of llama.cpp 11549 on
the CPU: 33.3 MiB (estimate 33.2), 53.3 (51.0). What an engine takes besides is the caller's margin.

Checkpoints, the engine's copies of windows and states, lie in main memory: they count where the engine computes there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from infra.engine_options import EngineOptions, row_bytes
from infra.model_facts import Cache, Facts

TARGET_SHARE = 0.85  # of a device's memory; the rest is for what grows, and for others
# Claude Code's first request with its own system prompt and some 24 tools, counted on its wire (version 2.1: 29k).
FIRST_REQUEST_TOKENS = 30_000
LEAST_WINDOW_TOKENS = 32_768  # the first request, the reserve for compaction, and little else
STEP_TOKENS = 8192
CELLS = 256  # llama.cpp rounds a window up to these
SLOTS_FIRST = 4
MOST_SLOTS = 16


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one device or several together. `margin_bytes` an engine takes that no sum tells: driver, code, workspaces.

    `holds_checkpoints`: it is main memory.
    """

    total_bytes: int
    free_bytes: int
    margin_bytes: int
    where: str = ""
    holds_checkpoints: bool = False

    def budget_bytes(self, sharers: int = 1) -> int:
        """What one of so many engines may take, so that the device is filled up to the target with all that is there
        already."""
        kept_free = int(self.total_bytes * (1 - TARGET_SHARE)) + 1
        return max(0, self.free_bytes - kept_free) // sharers


@dataclass(frozen=True, slots=True)
class Wanted:
    """None is `auto`."""

    slots: int | None = None
    context_tokens: int | None = None
    scratch_slots: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """`slots` are for conversations, `scratch_slots` beside them for side calls. `token_bytes` is what one more token
    of window costs, `slot_bytes` the whole of one slot with its checkpoints, `budget_bytes` what all of it may take."""

    slots: int
    scratch_slots: int
    context_tokens: int
    weights_bytes: int
    token_bytes: int
    slot_bytes: int
    buffers_bytes: int
    budget_bytes: int

    @property
    def engine_slots(self) -> int:
        return self.slots + self.scratch_slots

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.buffers_bytes + self.engine_slots * self.slot_bytes

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.budget_bytes


def restorable(facts: Facts) -> bool:
    """Does a saved slot of this model bring its cache back? Surely where every layer attends to everything. A window or
    a recurrent state cannot be cut back to an earlier token: that takes checkpoints, which not every engine saves.

    Told from metadata; the probe of a running engine has the last word.
    """
    return bool(facts.caches) and not facts.state_bytes and not any(cache.window for cache in facts.caches)


def token_bytes(facts: Facts, options: EngineOptions) -> int:
    """KV bytes that one more token of a slot's window costs."""
    return sum(_cell_bytes(cache, options) for cache in facts.caches if options.whole_window or not cache.window)


def slot_bytes(facts: Facts, options: EngineOptions, context_tokens: int) -> int:
    """KV and state bytes of one slot."""
    cells = _rounded(context_tokens)
    return cells * token_bytes(facts, options) + _fixed_bytes(facts, options, cells)


def checkpoint_bytes(facts: Facts, options: EngineOptions, context_tokens: int) -> int:
    """The most that checkpoints of one slot take. Each turn makes two to four, so the list fills up soon."""
    return options.checkpoints * _fixed_bytes(facts, options, _rounded(context_tokens))


def _fixed_bytes(facts: Facts, options: EngineOptions, cells: int) -> int:
    """Windows and states: what does not grow with the context."""
    windowed = (
        _cell_bytes(cache, options) * _window_cells(cache, options, cells)
        for cache in facts.caches
        if cache.window and not options.whole_window
    )
    return sum(windowed) + facts.state_bytes


def buffers_bytes(facts: Facts, options: EngineOptions, context_tokens: int, engine_slots: int) -> int:
    """What the engine computes in, estimated as the module says."""
    batch, cells = options.batch_tokens, _rounded(context_tokens)
    mask = 2 * cells * batch
    activations = 4 * batch * (4 * facts.width + 3 * facts.forward_width)
    logits = 4 * facts.vocabulary * engine_slots
    scores = 0 if options.flash_attention else 4 * facts.heads * batch * cells
    plain = {"f16", "bf16", "f32"} >= {options.key_type, options.value_type}
    unpacked = 0 if plain else 2 * cells * max((cache.keys + cache.values for cache in facts.caches), default=0)
    return mask + activations + logits + scores + unpacked


def plan(facts: Facts, options: EngineOptions, sizes: Sequence[int], memory: Memory, sharers: int = 1) -> Plan:
    """What `sizes` (slots, scratch slots, window) come to, whether they fit or not."""
    slots, scratch_slots, context_tokens = sizes
    checkpoints = checkpoint_bytes(facts, options, context_tokens) if memory.holds_checkpoints else 0
    return Plan(
        slots=slots,
        scratch_slots=scratch_slots,
        context_tokens=context_tokens,
        weights_bytes=facts.weights_bytes,
        token_bytes=token_bytes(facts, options),
        slot_bytes=slot_bytes(facts, options, context_tokens) + checkpoints,
        buffers_bytes=memory.margin_bytes + buffers_bytes(facts, options, context_tokens, slots + scratch_slots),
        budget_bytes=memory.budget_bytes(sharers),
    )


def choose(facts: Facts, options: EngineOptions, wanted: Wanted, memory: Memory, sharers: int = 1) -> Plan | None:
    """The plan of the rule above for one of `sharers` engines on the device; None when nothing fits."""
    windows = [wanted.context_tokens] if wanted.context_tokens else list(windows_of(facts))
    counts = [wanted.slots] if wanted.slots else range(SLOTS_FIRST, 0, -1)
    for count in counts:
        for scratch in _scratch_choices(facts, wanted):
            for window in reversed(windows):
                if not plan(facts, options, (count, scratch, window), memory, sharers).fits:
                    continue
                if wanted.slots is None and window == windows[-1]:
                    return _filled(facts, options, (count, scratch, window), memory, sharers)
                return plan(facts, options, (count, scratch, window), memory, sharers)
    return None


def windows_of(facts: Facts) -> Iterable[int]:
    """The windows that `auto` chooses from, the smallest first; none for a model trained for less than the least."""
    most = facts.trained_tokens // CELLS * CELLS
    if most >= LEAST_WINDOW_TOKENS:
        yield from range(LEAST_WINDOW_TOKENS, most, STEP_TOKENS)
        yield most


def _filled(facts: Facts, options: EngineOptions, sizes: tuple[int, int, int], memory: Memory, sharers: int) -> Plan:
    """With as many more slots as fit."""
    slots, scratch, window = sizes
    best = plan(facts, options, sizes, memory, sharers)
    for more in range(slots + 1, MOST_SLOTS + 1):
        larger = plan(facts, options, (more, scratch, window), memory, sharers)
        if not larger.fits:
            break
        best = larger
    return best


def scratch_slots(facts: Facts) -> int:
    """What `auto` means for this model: where swapping loses nothing, a side call may take any slot."""
    return 0 if restorable(facts) else 1


def _scratch_choices(facts: Facts, wanted: Wanted) -> Sequence[int]:
    if wanted.scratch_slots is not None:
        return (wanted.scratch_slots,)
    return range(scratch_slots(facts), -1, -1)


def _cell_bytes(cache: Cache, options: EngineOptions) -> int:
    return row_bytes(options.key_type, cache.keys) + row_bytes(options.value_type, cache.values)


def _window_cells(cache: Cache, options: EngineOptions, cells: int) -> int:
    """llama.cpp keeps the window and one batch."""
    return _rounded(min(cells, cache.window + options.batch_tokens))


def _rounded(tokens: int) -> int:
    return -(-tokens // CELLS) * CELLS
