"""No answer is waited for beyond what its client and the settings allow, whichever comes first."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.deadlines import Deadlines
from infra.errors import DeadlinePassed, TooSlow
from scheduler.contract import Limits

pytestmark = pytest.mark.unit

seconds = st.floats(0.001, 1e5)
some = st.none() | seconds


@given(st.builds(Limits, total_s=some, first_token_s=some), seconds, st.floats(0, 2e5), st.booleans())
def test_what_is_left_never_exceeds_a_limit(limits: Limits, longest_s: float, at_s: float, begun: bool) -> None:
    now = [1000.0]
    deadlines = Deadlines(limits, longest_s, lambda: now[0])
    if begun:
        deadlines.begun()
    first_s = math.inf if begun or limits.first_token_s is None else limits.first_token_s
    earliest_s = min(limits.total_s or math.inf, longest_s, first_s)
    now[0] += at_s
    try:
        left_s = deadlines.left_s()
    except DeadlinePassed:
        assert at_s >= earliest_s - 1e-6
    else:
        assert 0 < left_s <= earliest_s - at_s + 1e-6


@given(st.builds(Limits, first_token_s=some, between_tokens_s=some), seconds, st.none() | seconds)
def test_an_answer_that_waits_again_is_held_to_the_limits_of_tokens(
    limits: Limits, at_s: float, told_s: float | None
) -> None:
    now = [1000.0]
    deadlines = Deadlines(limits, math.inf, lambda: now[0])
    deadlines.begun()
    if told_s is not None:
        now[0] += told_s
        deadlines.told()
    now[0] += at_s
    limit_s = (limits.first_token_s if told_s is None else limits.between_tokens_s) or math.inf
    try:
        deadlines.waits()
    except TooSlow:
        assert at_s >= limit_s - 1e-6
    else:
        assert at_s <= limit_s + 1e-6
