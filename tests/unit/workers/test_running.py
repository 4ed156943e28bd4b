"""The answers being generated now, and stopping them."""

import threading
from contextlib import ExitStack

import pytest

from infra.errors import Cancelled, WorkerLost
from workers.running import Running

pytestmark = pytest.mark.unit
WAIT_S = 10


class Generation:
    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


def test_a_job_counts_as_running_inside_its_block() -> None:
    running = Running()
    with running.job("a"):
        assert running.jobs() == ["a"]
    assert running.jobs() == []


def test_cancelling_stops_the_generation_of_that_job_alone() -> None:
    running, one, two = Running(), Generation(), Generation()
    with running.job("a"), running.job("b"):
        running.attach("a", one)
        running.attach("b", two)
        running.cancel("a")
        running.cancel("a")
        running.cancel("unknown")
        assert (one.cancelled.is_set(), two.cancelled.is_set()) == (True, False)


def test_a_job_cancelled_before_its_generation_began_is_stopped_when_it_begins() -> None:
    running, generation = Running(), Generation()
    with running.job("a"):
        running.cancel("a")
        running.attach("a", generation)
        assert generation.cancelled.is_set()


def test_a_cancelled_job_leaves_no_mark_on_the_next_of_its_name() -> None:
    running, generation = Running(), Generation()
    with running.job("a"):
        running.cancel("a")
    running.cancel("a")
    with running.job("a"):
        running.attach("a", generation)
        assert not generation.cancelled.is_set()


def test_stopping_all_stops_those_that_begin_afterwards_too() -> None:
    running, early, late = Running(), Generation(), Generation()
    with running.job("a"):
        running.attach("a", early)
        running.stop_all()
        assert early.cancelled.is_set()
        with running.job("b"):
            running.attach("b", late)
            assert late.cancelled.is_set()


def test_a_client_that_left_is_told_apart_from_a_worker_that_was_stopped() -> None:
    running = Running()
    with pytest.raises(Cancelled), running.job("a"):
        raise Cancelled("left")
    running.stop_all()
    with pytest.raises(WorkerLost, match="the worker was stopped") as caught, running.job("a"):
        raise Cancelled("stopped")
    assert caught.value.retry_after_s == 1


def test_waiting_ends_when_the_last_job_does() -> None:
    running = Running()
    assert running.wait_idle(0)
    with ExitStack() as jobs:
        jobs.enter_context(running.job("a"))
        assert not running.wait_idle(0)
        waited: list[bool] = []
        waiter = threading.Thread(target=lambda: waited.append(running.wait_idle(WAIT_S)))
        waiter.start()
    waiter.join()
    assert waited == [True]
