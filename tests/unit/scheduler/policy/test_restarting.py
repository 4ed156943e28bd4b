"""A failing engine rests longer each time; one that flaps makes its worker sick, one that lives makes it well."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.restarting import HEALTHY_AFTER_S, LONGEST_S, SICK_LONGEST_S, pause_s, row, sick

pytestmark = pytest.mark.unit

counts = st.integers(1, 10_000)
lives = st.none() | st.floats(0, 1e6)


@given(counts, counts)
def test_the_pause_never_shrinks_and_has_a_limit(failures: int, after: int) -> None:
    pause, longer = pause_s(failures, after), pause_s(failures + 1, after)
    assert 0.5 <= pause <= longer <= SICK_LONGEST_S
    if not sick(failures, after):
        assert pause <= LONGEST_S
    if not sick(failures + 1, after) and longer < LONGEST_S:
        assert longer == 2 * pause


@given(counts, counts)
def test_want_of_memory_gives_others_time(failures: int, after: int) -> None:
    assert pause_s(failures, after, memory=True) == max(5, pause_s(failures, after))


@given(st.lists(st.tuples(lives, st.booleans()), max_size=30), st.integers(1, 10))
def test_only_a_row_of_short_lives_makes_sick(past: list[tuple[float | None, bool]], after: int) -> None:
    failures = 0
    for ready_s, seen_late in past:
        failures = row(failures, ready_s, seen_late=seen_late)
    if sick(failures, after) and after > 1:
        assert all(ready_s is None or ready_s < 600 for ready_s, _ in past[1 - after :])
    short = all(ready_s is None or ready_s < HEALTHY_AFTER_S for ready_s, _ in past)
    assert sick(failures, after) or not short or len(past) < after
