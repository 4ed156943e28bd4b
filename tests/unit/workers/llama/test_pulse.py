"""An engine owes signs of life exactly as long as it works for somebody."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.llama.pulse import Pulse

pytestmark = pytest.mark.unit

STEPS = st.lists(st.sampled_from(["begin", "beat", "heard", "unheard", "alive", "time"]), max_size=60)


@given(STEPS)
def test_silence_is_the_time_since_the_last_sign_that_was_owed(steps: list[str]) -> None:
    now, working, since = 0.0, 0, None
    pulse = Pulse(lambda: now)
    for step in steps:
        if step == "time":
            now += 1
        elif step == "begin":
            pulse.begin()
            working, since = working + 1, now if since is None else since
        elif step == "beat":
            pulse.beat()
            since = now if working else None
        elif step == "alive":
            pulse.seen_alive()
            since = since if working else None
        elif working:
            pulse.end(heard=step == "heard")
            working -= 1
            since = None if step == "heard" and not working else since
        assert pulse.silent_s() == (0 if since is None else now - since)


def test_clients_without_patience_do_not_hide_that_an_engine_hangs() -> None:
    now = 0.0
    pulse = Pulse(lambda: now)
    for _ in range(10):
        pulse.begin()
        now += 5
        pulse.end(heard=False)
    assert pulse.silent_s() == 50
