"""Asked to stop once, and twice."""

import os
import signal

import pytest

from infra.cli.signals import Signals, StopAskedError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_and_the_second_forces(number: signal.Signals) -> None:
    forced: list[bool] = []
    with Signals(lambda: forced.append(True)) as signals:
        signals.check()
        os.kill(os.getpid(), number)
        with pytest.raises(StopAskedError):
            signals.wait(60)
        assert forced == []
        os.kill(os.getpid(), number)
        with pytest.raises(StopAskedError):
            signals.check()
        assert signals.forced
        assert forced == [True]


def test_a_child_that_ends_wakes_the_waiting() -> None:
    with Signals(lambda: None) as signals:
        os.kill(os.getpid(), signal.SIGCHLD)
        signals.wait(60)
    assert not signals.asked


def test_the_handlers_before_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Signals(lambda: None):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
