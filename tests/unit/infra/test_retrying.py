"""Three tries, and pauses that double within their spread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.retrying import tries

pytestmark = pytest.mark.unit


@given(st.floats(0, 1))
def test_there_are_three_tries_with_growing_pauses(chance: float) -> None:
    pauses: list[float] = []
    assert list(tries(pauses.append, lambda: chance)) == [False, False, True]
    assert 0.15 <= pauses[0] <= 0.3
    assert 0.3 <= pauses[1] <= 0.6
    assert pauses[1] == 2 * pauses[0]
