"""Consistent hashing: stable, balanced, the same everywhere."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.ring import Ring, preference

pytestmark = pytest.mark.unit

names = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=12, unique=True)
KEYS = [f"conversation-{number}" for number in range(4000)]


def even(*workers: str) -> list[tuple[str, float]]:
    return [(name, 1.0) for name in workers]


def first(key: str, *workers: str) -> str:
    return preference(key, even(*workers))[0]


@given(st.text(), names, st.randoms(use_true_random=False))
def test_the_order_holds_each_worker_once_in_whatever_order_they_come(
    key: str, workers: list[str], dice: Random
) -> None:
    shuffled = list(workers)
    dice.shuffle(shuffled)
    order = preference(key, even(*workers))
    assert order == preference(key, even(*shuffled))
    assert sorted(order) == sorted(workers)


@given(st.text(), names, st.text(min_size=1, max_size=8))
def test_a_new_worker_changes_nothing_but_what_comes_to_it(key: str, workers: list[str], new: str) -> None:
    before = [name for name in preference(key, even(*workers)) if name != new]
    after = preference(key, even(*{*workers, new}))
    assert [name for name in after if name != new] == before


@given(st.text(), names, st.integers(0, 14))
def test_the_first_few_are_those_of_the_whole_order(key: str, workers: list[str], count: int) -> None:
    ring = Ring((name, 1.0 + number % 3) for number, name in enumerate(workers))
    assert ring.preference(key, count) == ring.preference(key)[:count]


def test_the_order_is_the_same_on_every_machine() -> None:
    assert preference("conversation", even("w1", "w2", "w3", "w4")) == ["w3", "w1", "w2", "w4"]


@pytest.mark.parametrize("count", [2, 4, 10])
def test_adding_one_worker_moves_its_share_and_only_to_it(count: int) -> None:
    workers = [f"w{number}" for number in range(count)]
    before = {key: first(key, *workers) for key in KEYS}
    after = {key: first(key, *workers, "new") for key in KEYS}
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {after[key] for key in moved} == {"new"}
    assert len(moved) / len(KEYS) == pytest.approx(1 / (count + 1), rel=0.2)


@pytest.mark.parametrize("count", [2, 4, 10])
def test_losing_one_worker_moves_only_its_own_share(count: int) -> None:
    workers = [f"w{number}" for number in range(count)]
    before = {key: first(key, *workers) for key in KEYS}
    after = {key: first(key, *workers[1:]) for key in KEYS}
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {before[key] for key in moved} == {"w0"}
    assert len(moved) / len(KEYS) == pytest.approx(1 / count, rel=0.2)


def test_conversations_spread_evenly() -> None:
    shares = Counter(first(key, *[f"w{number}" for number in range(8)]) for key in KEYS)
    assert len(shares) == 8
    assert all(share == pytest.approx(len(KEYS) / 8, rel=0.2) for share in shares.values())


def test_a_worker_of_three_times_the_weight_gets_three_times_the_share() -> None:
    shares = Counter(preference(key, [("small", 1.0), ("large", 3.0)])[0] for key in KEYS)
    assert shares["large"] / shares["small"] == pytest.approx(3, rel=0.2)
