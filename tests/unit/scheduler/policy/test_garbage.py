"""One token beyond the limit is garbage, anything else is an answer."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.garbage import IN_A_ROW, Repeats, row, speaks_against_engine

pytestmark = pytest.mark.unit


@given(st.lists(st.sampled_from(["a", "b", " "]), max_size=60), st.integers(1, 8))
def test_only_a_run_beyond_the_limit_is_garbage(pieces: list[str], limit: int) -> None:
    repeats = Repeats(limit)
    found = any(repeats.add(piece) for piece in pieces)
    assert found == any(len(list(run)) > limit for _, run in groupby(pieces))


@given(st.lists(st.just("x"), max_size=60))
def test_without_a_limit_nothing_is(pieces: list[str]) -> None:
    repeats = Repeats(0)
    assert not any(repeats.add(piece) for piece in pieces)


@given(st.lists(st.booleans(), max_size=20))
def test_one_good_answer_acquits_the_engine(past: list[bool]) -> None:
    in_a_row = 0
    for garbled in past:
        in_a_row = row(in_a_row, garbled=garbled)
    assert speaks_against_engine(in_a_row) == (len(past) >= IN_A_ROW and all(past[-IN_A_ROW:]))
