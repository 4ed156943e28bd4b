"""How a worker ends: running answers first, up to a limit."""

import threading
from typing import cast

import pytest

from workers.lifecycle import drain_when_told
from workers.running import Running
from workers.serving import Serving

pytestmark = pytest.mark.unit
WAIT_S = 10


class Draining:
    name = "w1"

    def __init__(self) -> None:
        self.draining = threading.Event()


class Generation:
    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


def test_the_drain_is_announced_and_ends_when_the_last_answer_does() -> None:
    serving, running, announced = Draining(), Running(), threading.Event()
    thread = drain_when_told(cast(Serving, serving), running, WAIT_S, announced.set)
    generation = Generation()
    with running.job("a"):
        running.attach("a", generation)
        serving.draining.set()
        assert announced.wait(WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert not generation.cancelled.is_set()


def test_an_answer_longer_than_the_limit_is_stopped() -> None:
    serving, running = Draining(), Running()
    thread = drain_when_told(cast(Serving, serving), running, 0.001, lambda: None)
    generation = Generation()
    with running.job("a"):
        running.attach("a", generation)
        serving.draining.set()
        assert generation.cancelled.wait(WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_a_ticket_taken_before_the_drain_is_waited_for_and_its_job_limited() -> None:
    """Between the ticket and its job nothing runs yet; the drain must not take that for its end."""
    serving, running, announced = Draining(), Running(), threading.Event()
    thread = drain_when_told(cast(Serving, serving), running, 0.001, announced.set)
    generation = Generation()
    with running.task():
        serving.draining.set()
        assert announced.wait(WAIT_S)
        with running.job("late"):
            running.attach("late", generation)
            assert generation.cancelled.wait(WAIT_S)
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_an_answer_that_begins_after_the_drain_is_stopped_at_once() -> None:
    serving, running, generation = Draining(), Running(), Generation()
    thread = drain_when_told(cast(Serving, serving), running, WAIT_S, lambda: None)
    serving.draining.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    with running.job("late"):
        running.attach("late", generation)
        assert generation.cancelled.is_set()


def test_a_ticket_that_waits_for_a_slot_hears_of_the_drain() -> None:
    serving, running = Draining(), Running()
    thread = drain_when_told(cast(Serving, serving), running, WAIT_S, lambda: None)
    with running.task():
        seen = running.changes
        serving.draining.set()
        running.wait_change(seen, WAIT_S)
        assert running.changes > seen
    thread.join(WAIT_S)
    assert not thread.is_alive()
