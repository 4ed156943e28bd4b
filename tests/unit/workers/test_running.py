"""The answers being generated now, and stopping them."""

import threading
from contextlib import ExitStack
from typing import cast

import pytest

from infra.errors import Cancelled, WorkerLost
from scheduler.claims import Claims
from workers.running import Running, hear_cancellations

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
        assert list(running.jobs()) == ["a"]
    assert list(running.jobs()) == []


def test_what_was_heard_of_one_attempt_does_not_stop_the_next() -> None:
    """A job that the broker forgot may be here again, submitted anew, before that word has come through."""
    running, second = Running(), Generation()
    with ExitStack() as first, running.job("a"):
        heard_of = running.jobs()["a"]
        first.enter_context(running.job("a"))
        running.attach("a", second)
        running.cancel("a", heard_of)
        assert not second.cancelled.is_set()
        running.cancel("a", running.jobs()["a"])
        assert second.cancelled.is_set()


def test_of_two_attempts_at_one_job_the_end_of_the_first_leaves_the_second_running() -> None:
    """A worker that was taken for dead takes its own job again before it hears that its attempt is over."""
    running, second = Running(), Generation()
    with ExitStack() as first, ExitStack() as later:
        first.enter_context(running.job("a"))
        later.enter_context(running.job("a"))
        running.attach("a", second)
        first.close()
        assert list(running.jobs()) == ["a"]
        running.cancel("a")
        assert second.cancelled.is_set()
    assert list(running.jobs()) == []


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


def test_tickets_are_those_in_work_that_have_no_job() -> None:
    running = Running()
    with running.task(), running.task():
        assert (running.tickets, list(running.jobs())) == (2, [])
        with running.job("a"):
            assert (running.tickets, list(running.jobs())) == (1, ["a"])
    assert running.tickets == 0


def waits(running: Running, seen: int) -> threading.Thread:
    """A started thread that waits for a change for as long as a test may take."""
    thread = threading.Thread(target=running.wait_change, args=(seen, WAIT_S))
    thread.start()
    return thread


def ends(thread: threading.Thread) -> bool:
    thread.join(WAIT_S / 2)
    return not thread.is_alive()


def test_a_ticket_that_waits_hears_of_a_change() -> None:
    running = Running()
    thread = waits(running, running.changes)
    running.change()
    assert ends(thread)


def test_a_change_that_came_before_the_wait_began_is_not_missed() -> None:
    running = Running()
    seen = running.changes
    running.change()
    assert ends(waits(running, seen))


def test_the_end_of_another_ticket_is_a_change() -> None:
    running = Running()
    with running.task():
        thread = waits(running, running.changes)
    assert ends(thread)


def test_the_wait_for_a_change_has_an_end() -> None:
    running = Running()
    running.wait_change(running.changes, 0.001)


class Words:
    """A control stream that says these, and then that nobody is to listen any more."""

    def __init__(self, stopping: threading.Event, *said: list[str]) -> None:
        self.said, self.stopping = list(said), stopping

    def cancellations(self) -> list[str]:
        word = self.said.pop(0)
        if not self.said:
            self.stopping.set()
        return word


def test_the_control_stream_cancels_jobs_and_tells_of_new_ones() -> None:
    running, generation, stopping = Running(), Generation(), threading.Event()
    seen = running.changes
    with running.job("a"):
        running.attach("a", generation)
        hear_cancellations(cast(Claims, Words(stopping, ["a"])), running, stopping)
        assert generation.cancelled.is_set()
        assert running.changes == seen
        stopping.clear()
        hear_cancellations(cast(Claims, Words(stopping, ["", "b"])), running, stopping)
        assert running.changes > seen


def test_what_is_cut_is_lost_by_the_worker_and_what_begins_later_is_not_cut() -> None:
    running, early, late = Running(), Generation(), Generation()

    def answered(generation: Generation, *, cut: bool) -> None:
        with running.job("a"):
            running.attach("a", generation)
            if cut:
                running.cut_all()
            raise Cancelled("stopped")

    with pytest.raises(WorkerLost):
        answered(early, cut=True)
    with pytest.raises(Cancelled):
        answered(late, cut=False)
    assert (early.cancelled.is_set(), late.cancelled.is_set()) == (True, False)
