"""The samples of an engine's memory, and when they have it restarted."""

import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from infra import machine
from infra.config import Settings
from scheduler.policy.growing import APART_S
from workers import memory as module
from workers.llama import memory as asked
from workers.llama.process import EngineState
from workers.memory import MemoryWatch
from workers.serving import Serving

pytestmark = pytest.mark.unit
GIB = 2**30
MINUTE_S = 60.0


@dataclass
class Engine:
    """What is seen of an engine: main memory, and the card's; and of the machine."""

    held: float = 4 * GIB
    card: float = 10 * GIB
    available: float = 50 * GIB
    now_s: float = 0.0
    run: str = "first"
    restarts: list[str] = field(default_factory=list)
    refuses: bool = False
    state: EngineState = EngineState.READY
    pid: int = 7

    def restart(self, reason: str) -> bool:
        if not self.refuses:
            self.restarts.append(reason)
        return not self.refuses

    def watch(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> MemoryWatch:
        monkeypatch.setattr(module, "private_bytes", lambda _: int(self.held))
        monkeypatch.setattr(module, "card_bytes", lambda _: int(self.card))
        monkeypatch.setattr(machine, "memory_bytes", lambda: (64 * GIB, int(self.available)))
        serving = SimpleNamespace(engine=self, caches=SimpleNamespace(run=self.run))
        self.serving = serving
        return MemoryWatch(cast(Serving, serving), Settings(**settings), self.restart, lambda: self.now_s)

    def pass_by(self, watch: MemoryWatch, minutes: int, *, main: float = 0, card: float = 0) -> None:
        for _ in range(minutes):
            self.now_s += MINUTE_S
            self.held += main
            self.card += card
            watch.look()


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_an_engine_that_stands_is_left_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.pass_by(engine.watch(monkeypatch), 300)
    assert engine.restarts == []


@pytest.mark.parametrize(("grows", "words"), [("main", "memory grew by"), ("card", "memory on the card grew by")])
def test_a_slow_leak_is_told_after_an_hour(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, grows: str, words: str
) -> None:
    watch = engine.watch(monkeypatch)
    engine.pass_by(watch, 59, **{grows: GIB / 30})
    assert engine.restarts == []
    engine.pass_by(watch, 3, **{grows: GIB / 30})
    (reason,) = engine.restarts
    assert words in reason
    assert "engine_growth_bytes_per_h" in reason


def test_cards_that_are_not_used_are_not_asked_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.pass_by(engine.watch(monkeypatch, gpu="none"), 70, card=GIB)
    assert engine.restarts == []


def test_a_machine_without_memory_left_restarts_an_engine_that_has_grown(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = engine.watch(monkeypatch)
    watch.look()
    engine.available = GIB
    engine.pass_by(watch, 1)
    assert engine.restarts == []  # it was not this one
    engine.pass_by(watch, 1, main=6 * GIB)
    (reason,) = engine.restarts
    assert reason.startswith("its memory grew from 4.00 GiB to 10.00 GiB since it was started")


def test_a_restart_that_does_not_help_is_not_repeated_at_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = engine.watch(monkeypatch, engine_memory_ceiling_bytes=5 * GIB)
    watch.look()
    engine.pass_by(watch, 1, main=2 * GIB)
    assert len(engine.restarts) == 1
    engine.serving.caches.run, engine.held = "second", 4 * GIB
    watch.look()
    engine.pass_by(watch, 9, main=GIB)
    assert len(engine.restarts) == 1
    engine.now_s += APART_S
    watch.look()
    assert len(engine.restarts) == 2


def test_a_new_run_is_judged_by_itself(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = engine.watch(monkeypatch)
    engine.pass_by(watch, 50, main=GIB / 30)
    engine.serving.caches.run = "second"
    engine.pass_by(watch, 50, main=GIB / 30)
    assert engine.restarts == []


def test_what_was_refused_is_asked_for_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = engine.watch(monkeypatch, engine_memory_ceiling_bytes=5 * GIB)
    watch.look()
    engine.refuses = True
    engine.pass_by(watch, 1, main=2 * GIB)
    engine.refuses = False
    engine.pass_by(watch, 1)
    assert len(engine.restarts) == 1


def test_an_engine_that_is_not_ready_is_not_looked_at(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = engine.watch(monkeypatch, engine_memory_ceiling_bytes=5 * GIB)
    engine.state = EngineState.STARTING
    engine.pass_by(watch, 5, main=GIB)
    assert engine.restarts == []


def test_a_process_holds_less_of_its_own_than_there_is_of_it_in_memory() -> None:
    pid = os.getpid()
    assert 0 < asked.private_bytes(pid) <= asked.resident_bytes(pid)
    assert asked.private_bytes(0) == asked.resident_bytes(0) == 0


def test_a_process_s_memory_on_all_cards_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "output_of", lambda *_: "712, 100\n71, 23000\n71, 500\n71, [N/A]\n")
    assert asked.card_bytes(71) == 23500 * 2**20
    assert asked.card_bytes(9) == 0
