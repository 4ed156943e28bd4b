"""What a worker does between the two words of a drain."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from scheduler.contract import WorkerState
from tests.doubles.services import wait_for
from workers.drain import Drain
from workers.renewal import Renewal
from workers.running import Running
from workers.serving import Serving

pytestmark = pytest.mark.unit
ENDLESS_MS = 600_000


class Worker:
    """As much of a worker as a drain needs."""

    name = "w1"
    caches = None

    def __init__(self) -> None:
        self.draining = threading.Event()
        self.shown: list[WorkerState | None] = []
        self.aside: WorkerState | None = None

    def set_aside(self, state: WorkerState | None) -> None:
        self.aside = state
        self.shown.append(state)


class Generation:
    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


@contextmanager
def looked_after(drain: Drain) -> Iterator[threading.Event]:
    """Its thread runs inside the block; the event ends it."""
    stopping = threading.Event()
    thread = threading.Thread(target=drain.run, args=(stopping,))
    thread.start()
    try:
        yield stopping
    finally:
        stopping.set()
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def running() -> Running:
    return Running()


@pytest.fixture
def drain(worker: Worker, running: Running) -> Drain:
    serving = cast(Serving, worker)
    return Drain(serving, running, Renewal(serving, running, 0))


def test_the_gate_closes_with_the_word_itself(worker: Worker, drain: Drain) -> None:
    drain.told(ENDLESS_MS)
    assert worker.aside is WorkerState.DRAINING


def test_it_is_drained_when_the_last_answer_ends_and_works_again_when_taken_back(
    worker: Worker, running: Running, drain: Drain
) -> None:
    generation = Generation()
    with looked_after(drain):
        with running.job("a"):
            running.attach("a", generation)
            drain.told(ENDLESS_MS)
            wait_for(lambda: WorkerState.DRAINING in worker.shown, "the drain to be told")
        wait_for(lambda: worker.aside is WorkerState.DRAINED, "the drain's end")
        drain.told(ENDLESS_MS)
        assert worker.aside is WorkerState.DRAINED
        drain.told(None)
        wait_for(lambda: worker.aside is None, "the worker to work again")
    assert worker.shown == [WorkerState.DRAINING, WorkerState.DRAINED, None]
    assert not generation.cancelled.is_set()


def test_an_answer_longer_than_the_limit_is_cut_and_those_after_the_drain_are_not(
    worker: Worker, running: Running, drain: Drain
) -> None:
    generation, later = Generation(), Generation()
    with looked_after(drain):
        with running.job("a"):
            running.attach("a", generation)
            drain.told(0)
            assert generation.cancelled.wait(10)
        wait_for(lambda: worker.aside is WorkerState.DRAINED, "the drain's end")
        drain.told(None)
        wait_for(lambda: worker.aside is None, "the worker to work again")
        with running.job("b"):
            running.attach("b", later)
    assert not later.cancelled.is_set()


def test_a_new_word_sets_a_new_limit(worker: Worker, running: Running, drain: Drain) -> None:
    generation = Generation()
    with looked_after(drain), running.job("a"):
        running.attach("a", generation)
        drain.told(ENDLESS_MS)
        wait_for(lambda: worker.shown, "the drain to begin")
        assert not generation.cancelled.is_set()
        drain.told(0)
        assert generation.cancelled.wait(10)


def test_what_was_taken_back_while_the_model_loaded_leaves_nothing(worker: Worker, drain: Drain) -> None:
    drain.told(ENDLESS_MS)
    drain.told(None)
    with looked_after(drain):
        wait_for(lambda: worker.shown == [None], "the worker to work")


def test_a_worker_that_is_told_to_end_meanwhile_does_not_take_work_again(
    worker: Worker, running: Running, drain: Drain
) -> None:
    with looked_after(drain), running.job("a"):
        drain.told(ENDLESS_MS)
        wait_for(lambda: worker.shown, "the drain to begin")
        worker.draining.set()
        drain.told(None)
    assert worker.aside is not None
