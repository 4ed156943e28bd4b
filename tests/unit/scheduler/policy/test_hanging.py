"""An engine is ended only when nothing speaks for it any more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.hanging import BUSY_SHARE, PATIENCE, STEP_TOKENS, Look, Loop, hangs, suspicious

pytestmark = pytest.mark.unit

seconds = st.floats(0, 1e5)
looks = st.builds(Look, silent_s=seconds, loop=st.sampled_from(Loop), busy_share=st.floats(0, 64))


@given(seconds, st.floats(0.1, 1e6), st.floats(0.1, 1e4))
def test_no_engine_is_looked_at_before_its_limit_or_within_what_a_step_should_take(
    silent_s: float, rate: float, hang_s: float
) -> None:
    if suspicious(silent_s, rate, hang_s):
        assert silent_s >= hang_s
        assert silent_s >= PATIENCE * STEP_TOKENS / rate
        assert suspicious(silent_s + 1, rate, hang_s)


@given(looks, seconds)
def test_an_engine_whose_slots_are_further_never_hangs(look: Look, longest_s: float) -> None:
    if look.loop is Loop.MOVES:
        assert not hangs(look, longest_s)


@given(looks, seconds)
def test_an_engine_that_neither_answers_nor_computes_hangs(look: Look, longest_s: float) -> None:
    if look.loop is Loop.SILENT and look.busy_share < BUSY_SHARE:
        assert hangs(look, longest_s)


@given(looks, seconds)
def test_an_engine_that_computes_is_believed_up_to_the_limit_and_no_longer(look: Look, longest_s: float) -> None:
    if look.loop is Loop.SILENT and look.busy_share >= BUSY_SHARE:
        assert hangs(look, longest_s) == (look.silent_s >= longest_s)


def test_an_engine_that_answers_and_does_not_get_on_hangs() -> None:
    assert hangs(Look(31, Loop.STANDS, busy_share=1.0), longest_s=600)
