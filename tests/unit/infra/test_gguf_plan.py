"""Slots and windows by memory: the sum, and the choice."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.engine_options import KV_TYPES, EngineOptions
from infra.gguf_plan import (
    LEAST_WINDOW_TOKENS,
    MOST_SLOTS,
    SLOTS_FIRST,
    Memory,
    Wanted,
    choose,
    plan,
    restorable,
    slot_bytes,
    token_bytes,
    windows_of,
)
from infra.model_facts import Cache, Facts

pytestmark = pytest.mark.unit

GIB = 2**30
PLAIN = EngineOptions()
FULL = Cache(1024, 1024)
# A dense model of 8 GiB with 36 layers and 8 heads of 128 for keys and values.
CODER = Facts(131072, 8 * GIB, (FULL,) * 36, layers=36, vocabulary=151936, width=4096, forward_width=12288, heads=32)

caches = st.builds(
    Cache, st.sampled_from([256, 1024]), st.sampled_from([256, 1024]), st.sampled_from([0, 0, 512, 4096])
)
models = st.builds(
    Facts,
    trained_tokens=st.sampled_from([32768, 40960, 128000, 262144]),
    weights_bytes=st.integers(2**20, 16 * GIB),
    caches=st.lists(caches, min_size=1, max_size=40).map(tuple),
    state_bytes=st.sampled_from([0, 0, 2**20, 64 * 2**20]),
    vocabulary=st.sampled_from([0, 32000, 262144]),
    width=st.just(4096),
    forward_width=st.just(12288),
)
totals = st.integers(4 * GIB, 192 * GIB)
wishes = st.builds(
    Wanted,
    slots=st.none() | st.integers(1, 20),
    context_tokens=st.none() | st.sampled_from([8192, 32768, 65536, 200000]),
    scratch_slots=st.none() | st.integers(0, 4),
)
kv_types = st.sampled_from(sorted(KV_TYPES))


def card(total_bytes: int, used_bytes: int = 0) -> Memory:
    return Memory(total_bytes, total_bytes - used_bytes, GIB, "CUDA0")


def test_a_card_of_24_gib_with_8_of_weights_holds_four_slots_at_eight_bits_and_is_filled_to_nearly_85_percent() -> None:
    for options, slots in ((PLAIN, 2), (EngineOptions("q8_0", "q8_0"), 4)):
        chosen = choose(CODER, options, Wanted(), card(24 * GIB))
        assert chosen is not None
        assert chosen.slots == slots
        assert 0.75 * 24 * GIB < chosen.total_bytes <= 0.85 * 24 * GIB


@given(facts=models, wanted=wishes, total=totals, used=st.floats(0, 1), key=kv_types, value=kv_types)
def test_a_plan_never_takes_more_than_the_target_leaves(
    facts: Facts, wanted: Wanted, total: int, used: float, key: str, value: str
) -> None:
    memory = card(total, int(used * total))
    chosen = choose(facts, EngineOptions(key, value), wanted, memory)
    if chosen is not None:
        assert chosen.total_bytes + int(used * total) <= 0.85 * total
        assert chosen.slots == (wanted.slots or chosen.slots) >= 1
        assert chosen.context_tokens == (wanted.context_tokens or chosen.context_tokens)
        assert wanted.slots or chosen.slots <= MOST_SLOTS
        assert wanted.scratch_slots in (None, chosen.scratch_slots)
        assert wanted.context_tokens or LEAST_WINDOW_TOKENS <= chosen.context_tokens <= facts.trained_tokens


@given(facts=models, wanted=wishes, total=totals, more=st.integers(0, 64 * GIB))
def test_more_memory_never_gives_fewer_slots(facts: Facts, wanted: Wanted, total: int, more: int) -> None:
    small, large = (choose(facts, PLAIN, wanted, card(size)) for size in (total, total + more))
    if small is not None:
        assert large is not None
        assert large.slots >= small.slots
        if large.engine_slots == small.engine_slots:
            assert large.context_tokens >= small.context_tokens


def test_slots_grow_with_memory_also_where_buffers_cost_more_than_slots() -> None:
    tiny = Facts(262144, 2**22, (Cache(32, 32),))
    steps = [choose(tiny, PLAIN, Wanted(), card(int(1.17 * GIB) + step * 2**24)) for step in range(64)]
    slots = [chosen.slots for chosen in steps if chosen is not None]
    assert slots == sorted(slots)
    assert {SLOTS_FIRST, MOST_SLOTS} <= set(slots)
    windows = [chosen.context_tokens for chosen in steps if chosen is not None and chosen.slots == SLOTS_FIRST]
    assert len(windows) > 10
    assert windows == sorted(windows)


@given(facts=models, total=totals, sharers=st.integers(1, 8))
def test_engines_that_share_a_device_stay_under_its_target_together(facts: Facts, total: int, sharers: int) -> None:
    chosen = choose(facts, PLAIN, Wanted(), card(total), sharers)
    assert chosen is None or chosen.total_bytes * sharers <= 0.85 * total


@given(facts=models, total=totals)
def test_what_is_left_open_goes_to_four_slots_first_then_to_the_window(facts: Facts, total: int) -> None:
    chosen = choose(facts, PLAIN, Wanted(), card(total))
    if chosen is not None and chosen.slots != SLOTS_FIRST:
        largest = chosen.context_tokens == max(windows_of(facts))
        assert chosen.slots < SLOTS_FIRST or largest


@given(facts=models, context=st.integers(1, 262144))
def test_eight_bits_take_nearly_half_of_sixteen_and_four_a_quarter(facts: Facts, context: int) -> None:
    full = replace(facts, state_bytes=0)
    plain, half, quarter = (slot_bytes(full, EngineOptions(kind, kind), context) for kind in ("f16", "q8_0", "q4_0"))
    assert half / plain == pytest.approx(34 / 64)
    assert quarter / plain == pytest.approx(18 / 64)


@given(facts=models, context=st.integers(8192, 131072))
def test_windows_and_states_cost_the_same_whatever_the_context(facts: Facts, context: int) -> None:
    cells = -(-context // 256) * 256
    fixed = slot_bytes(facts, PLAIN, cells) - cells * token_bytes(facts, PLAIN)
    assert fixed == slot_bytes(facts, PLAIN, 2 * cells) - 2 * cells * token_bytes(facts, PLAIN)
    windowed = sum(2 * (c.keys + c.values) * (c.window + 512) for c in facts.caches if c.window)
    assert fixed == windowed + facts.state_bytes


def test_checkpoints_count_in_main_memory_only_and_as_many_as_there_can_be() -> None:
    hybrid = replace(CODER, state_bytes=2**20)
    main = replace(card(80 * GIB), holds_checkpoints=True)
    for options, count in ((PLAIN, 8), (EngineOptions(checkpoints=3), 3), (EngineOptions(checkpoints=0), 0)):
        bare, whole = (plan(hybrid, options, (1, 0, 65536), memory).slot_bytes for memory in (card(80 * GIB), main))
        assert whole - bare == count * 2**20
    assert plan(CODER, PLAIN, (1, 0, 65536), main) == plan(CODER, PLAIN, (1, 0, 65536), card(80 * GIB))


def test_a_window_that_is_kept_whole_costs_like_full_attention() -> None:
    sliding = replace(CODER, caches=(Cache(1024, 1024, 512),) * 36)
    assert slot_bytes(sliding, EngineOptions(whole_window=True), 65536) == slot_bytes(CODER, PLAIN, 65536)


def test_only_full_attention_everywhere_can_be_restored() -> None:
    assert restorable(CODER)
    assert not restorable(replace(CODER, caches=(FULL, Cache(1024, 1024, 512))))
    assert not restorable(replace(CODER, state_bytes=1))
    assert not restorable(replace(CODER, caches=()))


def test_side_calls_get_a_slot_of_their_own_only_where_swapping_loses_something_and_it_fits() -> None:
    hybrid = replace(CODER, state_bytes=2**20)
    plenty = card(80 * GIB)
    for facts, scratch in ((CODER, 0), (hybrid, 1)):
        chosen = choose(facts, PLAIN, Wanted(), plenty)
        assert chosen is not None
        assert (chosen.scratch_slots, chosen.engine_slots) == (scratch, chosen.slots + scratch)
    four = plan(hybrid, PLAIN, (4, 0, 65536), plenty)
    tight = card(int((four.total_bytes + 2**20) / 0.85))
    chosen = choose(hybrid, PLAIN, Wanted(slots=4, context_tokens=65536), tight)
    assert chosen is not None
    assert (chosen.slots, chosen.scratch_slots) == (4, 0)
    assert choose(hybrid, PLAIN, Wanted(slots=4, context_tokens=65536, scratch_slots=1), tight) is None


def test_a_slot_for_side_calls_never_takes_the_place_of_one_for_a_conversation() -> None:
    hybrid = replace(CODER, state_bytes=2**20)
    for slots in range(1, SLOTS_FIRST + 1):
        least = plan(hybrid, PLAIN, (slots, 0, LEAST_WINDOW_TOKENS), card(80 * GIB))
        chosen = choose(hybrid, PLAIN, Wanted(), card(int((least.total_bytes + 2**20) / 0.85)))
        assert chosen is not None
        assert (chosen.slots, chosen.scratch_slots) == (slots, 0)


def test_a_model_trained_for_less_than_the_first_request_has_no_window_to_choose() -> None:
    assert not list(windows_of(replace(CODER, trained_tokens=16384)))
    assert choose(replace(CODER, trained_tokens=16384), PLAIN, Wanted(), card(80 * GIB)) is None
    assert choose(replace(CODER, trained_tokens=16384), PLAIN, Wanted(context_tokens=8192), card(80 * GIB)) is not None
