"""Saved caches: a restore never loses time, a save is worth more the more it saves, and the store keeps its bounds."""

from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from scheduler.contract import Kind, StopReason
from scheduler.policy import swap
from scheduler.policy.eviction import Holding
from scheduler.policy.swap import (
    Saved,
    Speeds,
    Stored,
    best,
    due_for_checkpoint,
    stored_value,
    to_remove,
    worth_a_base,
    worth_saving,
)

pytestmark = pytest.mark.unit

# A usual card: 1,000 tokens/s prefilled, 100 kB a token, files at 300 MB/s and 2 GB/s.
USUAL = Speeds(1000, 3e8, 2e9, 1e5)
MAIN = Holding(0, Kind.MAIN, 30_000, StopReason.TOOL_USE, idle_s=1.0)

rates = st.floats(1e-3, 1e12)
# Real cards and disks for the most part, where the choice is close; and anything at all.
real_speeds = st.builds(Speeds, st.floats(100, 1e4), st.floats(1e8, 1e10), st.floats(1e8, 1e10), st.floats(1e4, 1e6))
all_speeds = real_speeds | st.builds(Speeds, rates, rates, rates, rates)
tokens = st.integers(0, 200_000) | st.integers(0, 10**7)
sizes = st.integers(0, 10**12)
times = st.floats(0, 1e7)
files = st.lists(
    st.builds(Saved, name=st.uuids().map(str), size_bytes=sizes, of_use=tokens), unique_by=lambda file: file.name
)
holdings = st.builds(
    Holding,
    slot=st.integers(0, 7),
    kind=st.sampled_from(Kind),
    tokens=tokens,
    stop_reason=st.none() | st.sampled_from(StopReason),
    idle_s=times,
    gap_s=st.none() | times,
)
stored = st.lists(
    st.builds(
        Stored,
        name=st.uuids().map(str),
        size_bytes=sizes,
        tokens=tokens,
        return_chance=st.floats(0, 1),
        uses=st.integers(0, 1000),
        unused_s=times,
    ),
    unique_by=lambda file: file.name,
    max_size=30,
)

# --- restoring ------------------------------------------------------------------------------------------------------


@given(files, tokens, all_speeds)
def test_a_restore_that_is_chosen_never_loses_time(saved: list[Saved], in_slot: int, speeds: Speeds) -> None:
    chosen = best(saved, in_slot, speeds)
    if chosen is not None:
        restored_s = speeds.restore_s(chosen.size_bytes)
        assert restored_s < speeds.prefill_s(chosen.of_use - in_slot)


@given(files, tokens, all_speeds)
def test_no_other_file_would_have_saved_more(saved: list[Saved], in_slot: int, speeds: Speeds) -> None:
    def gain_s(file: Saved) -> float:
        return speeds.prefill_s(file.of_use - in_slot) - speeds.restore_s(file.size_bytes)

    chosen = best(saved, in_slot, speeds)
    enough = [file for file in saved if file.of_use - in_slot >= swap.LEAST_TOKENS]
    most = max((gain_s(file) for file in enough), default=0.0)
    assert (chosen is not None) == (most > 0)
    if chosen is not None:
        assert gain_s(chosen) == most


@given(files, tokens, all_speeds)
def test_the_order_of_the_files_does_not_matter(saved: list[Saved], in_slot: int, speeds: Speeds) -> None:
    assert best(saved, in_slot, speeds) == best(saved[::-1], in_slot, speeds)


def test_what_the_slot_holds_already_is_not_brought_again() -> None:
    assert best([Saved("own", 10**6, 20_000)], 20_000, USUAL) is None
    assert best([Saved("own", 10**6, 20_000)], 19_900, USUAL) is None


def test_a_file_that_is_slower_than_the_prefill_stays_where_it_is() -> None:
    assert best([Saved("own", 4 * 10**9, 1000)], 0, USUAL) is None


def test_the_conversation_s_own_file_is_taken_before_its_base_where_it_holds_more() -> None:
    own, base = Saved("own", 3 * 10**9, 30_000), Saved("base", 2 * 10**9, 20_000)
    assert best([base, own], 0, USUAL) == own


# --- saving ---------------------------------------------------------------------------------------------------------


@given(holdings, tokens, st.just(0.0) | st.floats(0, 1), st.integers(0, 3), all_speeds)
@example(MAIN, 100, 0.0, 2, Speeds(1000, 2.17e8, 2e9, 1e5))
def test_with_less_of_it_saved_already_a_save_is_not_worth_less(
    held: Holding, saved: int, share: float, waiting: int, speeds: Speeds
) -> None:
    fewer = int(saved * share)
    if worth_saving(held, saved, waiting, speeds):
        assert worth_saving(held, fewer, waiting, speeds)


@given(holdings, tokens, st.integers(0, 64), all_speeds, st.floats(1, 1e3))
def test_a_faster_disk_never_makes_a_save_worth_less(
    held: Holding, saved: int, waiting: int, speeds: Speeds, faster: float
) -> None:
    if worth_saving(held, saved, waiting, speeds):
        assert worth_saving(held, saved, waiting, replace(speeds, save_bytes_per_s=speeds.save_bytes_per_s * faster))
        quick = replace(speeds, restore_bytes_per_s=speeds.restore_bytes_per_s * faster)
        assert worth_saving(held, saved, waiting, quick)
        slow_prefill = replace(speeds, prefill_tokens_per_s=speeds.prefill_tokens_per_s / faster)
        assert worth_saving(held, saved, waiting, slow_prefill)


@given(holdings, tokens, st.integers(0, 64), st.integers(0, 64), all_speeds)
def test_with_fewer_that_wait_a_save_is_not_worth_less(
    held: Holding, saved: int, waiting: int, fewer: int, speeds: Speeds
) -> None:
    assume(fewer <= waiting)
    if worth_saving(held, saved, waiting, speeds):
        assert worth_saving(held, saved, fewer, speeds)


@given(holdings, times, tokens, st.integers(0, 64), all_speeds)
def test_one_that_was_silent_for_longer_is_not_worth_more(
    held: Holding, longer_s: float, saved: int, waiting: int, speeds: Speeds
) -> None:
    if worth_saving(replace(held, idle_s=held.idle_s + longer_s), saved, waiting, speeds):
        assert worth_saving(held, saved, waiting, speeds)


@given(holdings, tokens, all_speeds)
def test_what_is_saved_is_not_saved_again(held: Holding, more: int, speeds: Speeds) -> None:
    assert not worth_saving(held, held.tokens + more, 0, speeds)


def test_a_long_conversation_is_worth_a_save_and_a_title_is_not() -> None:
    assert worth_saving(MAIN, 0, 1, USUAL)
    assert not worth_saving(replace(MAIN, kind=Kind.SIDE), 0, 1, USUAL)
    assert not worth_saving(replace(MAIN, kind=Kind.SUBAGENT, stop_reason=StopReason.END_TURN), 0, 1, USUAL)


def test_a_save_that_would_stop_many_answers_waits() -> None:
    slow = replace(USUAL, save_bytes_per_s=2.5e8)
    assert worth_saving(MAIN, 0, 0, slow)
    assert not worth_saving(MAIN, 0, 7, slow)


# --- bases ----------------------------------------------------------------------------------------------------------


@example(257, Speeds(1.0, 1e9, 257.0, 0.5))
@given(tokens, all_speeds)
def test_if_a_base_is_worth_it_a_longer_one_is(base: int, speeds: Speeds) -> None:
    if worth_a_base(base, speeds):
        assert worth_a_base(base * 2, speeds)


@given(tokens, all_speeds)
def test_a_base_that_is_worth_it_is_saved_and_restored_faster_than_prefilled(base: int, speeds: Speeds) -> None:
    if worth_a_base(base, speeds):
        assert speeds.save_s(base) < speeds.prefill_s(base)
        assert speeds.restore_s(int(base * speeds.bytes_per_token)) < speeds.prefill_s(base)
        assert base >= swap.LEAST_TOKENS


def test_a_usual_base_is_worth_it_and_a_short_one_is_not() -> None:
    assert worth_a_base(20_000, USUAL)
    assert not worth_a_base(200, USUAL)
    assert not worth_a_base(20_000, replace(USUAL, save_bytes_per_s=1e8))


# --- checkpoints ----------------------------------------------------------------------------------------------------

turns = st.lists(st.tuples(st.integers(1, 20_000), st.floats(0, 60)), min_size=1, max_size=80)


def saves(growth: list[tuple[int, float]]) -> tuple[list[int], int]:
    """The tokens written by each checkpoint of a conversation that grows turn by turn, and its final tokens."""
    written, size, saved = list[int](), 0, 0
    for grown, idle_s in growth:
        size += grown
        if due_for_checkpoint(size, saved, idle_s):
            saved = size
            written.append(size)
    return written, size


@given(turns)
def test_all_checkpoints_together_write_twice_the_final_size_at_most(growth: list[tuple[int, float]]) -> None:
    written, size = saves(growth)
    assert sum(written) <= 2 * size


@given(turns)
def test_a_crash_finds_half_of_a_conversation_that_rests_between_its_turns(growth: list[tuple[int, float]]) -> None:
    written, size = saves([(grown, swap.QUIET_S) for grown, _ in growth])
    assert size < swap.LEAST_TOKENS or 2 * written[-1] > size


@given(turns)
def test_one_that_never_rests_is_saved_too_once_it_is_overdue(growth: list[tuple[int, float]]) -> None:
    first, *rest = growth
    written, size = saves([(first[0] + swap.LEAST_TOKENS, swap.QUIET_S), *((grown, 0.0) for grown, _ in rest)])
    assert size < swap.OVERDUE * written[-1]


# --- removing -------------------------------------------------------------------------------------------------------


@given(stored, sizes, times)
def test_what_is_kept_holds_the_bounds(there: list[Stored], limit_bytes: int, age_s: float) -> None:
    removed = set(to_remove(there, limit_bytes, age_s))
    kept = [file for file in there if file.name not in removed]
    assert sum(file.size_bytes for file in kept) <= limit_bytes
    assert all(file.unused_s <= age_s for file in kept)


@given(stored, sizes, times)
def test_the_old_go_first_then_the_least_valuable_and_none_too_many(
    there: list[Stored], limit_bytes: int, age_s: float
) -> None:
    files_of = {file.name: file for file in there}
    removed = [files_of[name] for name in to_remove(there, limit_bytes, age_s)]
    assert len(removed) == len({file.name for file in removed})
    old = [file for file in removed if file.unused_s > age_s]
    assert removed[: len(old)] == old
    for_room = removed[len(old) :]
    values = [stored_value(file) for file in for_room]
    assert values == sorted(values)
    kept = [file for file in there if file not in removed]
    assert all(stored_value(file) >= value for file in kept for value in values)
    if for_room:
        assert sum(file.size_bytes for file in [*kept, for_room[-1]]) > limit_bytes


@given(stored, sizes, times)
def test_the_order_in_which_files_are_told_does_not_matter(there: list[Stored], limit_bytes: int, age_s: float) -> None:
    assert set(to_remove(there, limit_bytes, age_s)) == set(to_remove(there[::-1], limit_bytes, age_s))


def test_a_base_that_many_restored_outlives_a_conversation_that_nobody_did() -> None:
    base = Stored("base", 2 * 10**9, 20_000, 1.0, uses=20, unused_s=3600)
    conversation = Stored("conversation", 2 * 10**9, 20_000, 0.9, uses=0, unused_s=60)
    assert to_remove([base, conversation], 3 * 10**9, 86_400) == ["conversation"]


@given(st.integers(0, 1_000_000), st.integers(0, 1_000_000))
def test_a_side_call_costs_a_living_conversation_a_hundredth_at_most(tokens: int, saved: int) -> None:
    holding = Holding(0, Kind.MAIN, tokens, StopReason.TOOL_USE, 1.0)
    lost = 0 if swap.owed_to(holding, saved) else max(0, tokens - saved)
    assert lost <= max(swap.LEAST_TOKENS, tokens // 100 + 1)
    assert not swap.owed_to(replace(holding, kind=Kind.SIDE), 0)
