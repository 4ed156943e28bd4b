"""An engine that is restarted on purpose: what happens between the word and the work after it."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduler.contract import WorkerState
from tests.unit.workers.house import House, talk
from workers import renewal as module
from workers.caches import Caches
from workers.llama.process import EngineState
from workers.renewal import Renewal
from workers.running import Running
from workers.serving import Serving
from workers.store import conversation_name

pytestmark = pytest.mark.unit
WAIT_S = 20


class Worker:
    """As much of a worker as a restart needs. Its engine is another run as soon as it was ended, or fails."""

    name = "w1"

    def __init__(self, house: House, *, fails: bool = False) -> None:
        self.house = house
        self.caches: Any = house.caches
        self.draining = threading.Event()
        self.aside: WorkerState | None = None
        self.shown: list[tuple[WorkerState | None, str]] = []
        self.ended: list[tuple[str, bool, int]] = []
        self.engine = SimpleNamespace(state=EngineState.READY, condemn=self.condemn)
        self._fails = fails

    def set_aside(self, state: WorkerState | None, why: str = "") -> None:
        self.aside = state
        self.shown.append((state, why))

    def condemn(self, reason: str, *, planned: bool = False) -> None:
        self.ended.append((reason, planned, self.house.engine.saves))
        if self._fails:
            self.engine.state = EngineState.FAILING
        else:
            self.caches = SimpleNamespace(run="next")


class Generation:
    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


@pytest.fixture
def house(tmp_path: Path) -> House:
    made = House(tmp_path / "store")
    for name in ("anna", "bert"):
        made.turn(name, *talk(name, 3))
    return made


@pytest.fixture
def worker(house: House) -> Worker:
    return Worker(house)


@pytest.fixture
def running() -> Running:
    return Running()


def renewal_of(worker: Worker, running: Running, drain_s: float = 600.0) -> Renewal:
    return Renewal(cast(Serving, worker), running, drain_s)


def never() -> bool:
    return False


def names(worker: Worker, caches: Caches) -> list[str]:
    saved = caches.saved
    assert saved is not None
    return [name for name in ("anna", "bert") if saved.find(conversation_name(name)) is not None]


def test_what_the_slots_hold_is_saved_before_the_engine_is_ended(worker: Worker, running: Running) -> None:
    renewal, caches = renewal_of(worker, running), worker.caches
    assert renewal.plan("it grew")
    assert (worker.aside, renewal.due) == (WorkerState.RESTARTING, True)
    renewal.go_through(never)
    assert worker.ended == [("it grew", True, 2)]
    assert names(worker, caches) == ["anna", "bert"]
    assert caches.saved.promised == set()
    assert worker.shown[-1] == (None, "")
    assert worker.shown[0] == (WorkerState.RESTARTING, "it grew")
    assert not renewal.due


def in_thread(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("planned", [True, False])
def test_answers_may_end_before_a_planned_restart_and_are_cut_by_a_condemned_engine(
    worker: Worker, running: Running, *, planned: bool
) -> None:
    renewal, generation = renewal_of(worker, running), Generation()
    with running.job("a"):
        running.attach("a", generation)
        renewal.plan("it grew") if planned else renewal.condemn("it babbles")
        thread = in_thread(lambda: renewal.go_through(never))
        if not planned:
            assert generation.cancelled.wait(WAIT_S)
        assert worker.ended == []
    thread.join(WAIT_S)
    assert generation.cancelled.is_set() is not planned
    assert [planned for _, planned, _ in worker.ended] == [planned]


def test_an_answer_longer_than_the_drain_is_cut(worker: Worker, running: Running) -> None:
    renewal, generation = renewal_of(worker, running, drain_s=0), Generation()
    with running.job("a"):
        running.attach("a", generation)
        renewal.plan("it grew")
        thread = in_thread(lambda: renewal.go_through(never))
        assert generation.cancelled.wait(WAIT_S)
    thread.join(WAIT_S)
    assert len(worker.ended) == 1


def test_an_answer_that_cannot_be_cut_does_not_keep_the_engine(
    worker: Worker, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CUT_LIMIT_S", 0.1)
    renewal = renewal_of(worker, running, drain_s=0)
    with running.job("a"):
        renewal.plan("it grew")
        renewal.go_through(never)
    assert len(worker.ended) == 1


def test_a_save_that_hangs_is_not_waited_for_longer_than_the_limit(
    worker: Worker, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONDEMNED_SAVE_LIMIT_S", 0.1)
    may_end = threading.Event()

    def hang(*_: object) -> None:
        may_end.wait(WAIT_S)

    monkeypatch.setattr(worker.house.engine, "fail", hang)
    renewal = renewal_of(worker, running)
    renewal.condemn("it babbles")
    renewal.go_through(never)
    assert worker.ended == [("it babbles", False, 0)]
    may_end.set()


def test_an_engine_that_fails_afterwards_is_its_supervisor_s(house: House, running: Running) -> None:
    worker = Worker(house, fails=True)
    renewal = renewal_of(worker, running)
    renewal.plan("it grew")
    renewal.go_through(never)
    assert worker.aside is None


def test_a_worker_that_takes_no_work_plans_nothing_and_ends_a_condemned_engine_at_once(
    worker: Worker, running: Running
) -> None:
    renewal = renewal_of(worker, running)
    for state, drains in ((WorkerState.DRAINING, False), (None, True)):
        worker.aside = state
        worker.draining.set() if drains else worker.draining.clear()
        assert not renewal.plan("it grew")
    renewal.condemn("it babbles")
    assert (worker.ended, worker.shown, renewal.due) == ([("it babbles", False, 0)], [], False)


def test_an_engine_that_was_started_again_meanwhile_is_left_alone(worker: Worker, running: Running) -> None:
    renewal = renewal_of(worker, running)
    renewal.plan("it grew")
    worker.caches = SimpleNamespace(run="another")
    renewal.go_through(never)
    assert (worker.ended, worker.aside) == ([], None)


def test_a_worker_that_is_told_to_end_meanwhile_takes_no_work_again(worker: Worker, running: Running) -> None:
    renewal = renewal_of(worker, running)
    with running.job("a"):
        renewal.plan("it grew")
        renewal.go_through(lambda: True)
    assert (worker.ended, worker.aside) == ([], WorkerState.RESTARTING)
