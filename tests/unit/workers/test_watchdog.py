"""Two looks at a silent engine, and what follows."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from infra.config import Settings
from scheduler.contract import Rates
from workers import watchdog as module
from workers.llama.pulse import Pulse
from workers.serving import Serving
from workers.watchdog import APART_S, Watchdog, Working

pytestmark = pytest.mark.unit

STUCK: Working = [{"id": 0, "is_processing": True, "next_token": [{"n_decoded": 7}]}]
FURTHER: Working = [{"id": 0, "is_processing": True, "next_token": [{"n_decoded": 8}]}]


@dataclass
class Engine:
    """What the watchdog sees of an engine, one entry of `sights` at each look: slots, and processor seconds."""

    sights: list[tuple[Working | None, float]]
    pid: int = 7
    now_s: float = 0.0
    condemned: list[str] = field(default_factory=list)

    def working_slots(self, _: object = None) -> Working | None:
        return self.sights[0][0]

    def processor_s(self, _: int) -> float:
        return self.sights.pop(0)[1]

    def condemn(self, reason: str) -> None:
        self.condemned.append(reason)


def watched(engine: Engine, monkeypatch: pytest.MonkeyPatch, *, works: bool = True) -> tuple[Watchdog, Pulse]:
    monkeypatch.setattr(module, "processor_s", engine.processor_s)
    monkeypatch.setattr(module, "working_slots", engine.working_slots)
    pulse = Pulse(lambda: engine.now_s)
    if works:
        pulse.begin()
    serving = SimpleNamespace(name="w1", pulse=pulse, rates=Rates(), engine=engine, silence="")
    return Watchdog(cast(Serving, serving), 30, 600, lambda: engine.now_s), pulse


def pass_by(watchdog: Watchdog, engine: Engine, seconds: float) -> None:
    for _ in range(int(seconds)):
        engine.now_s += 1
        watchdog.look()


@pytest.mark.parametrize(
    "sights",
    [[(None, 0.0), (None, 0.0)], [(STUCK, 0.0), (STUCK, 3.0)], [(None, 0.0), (STUCK, 0.0), (STUCK, 0.0)]],
    ids=["silent and idle", "answers and stands", "answers in the end and stands"],
)
def test_an_engine_that_hangs_is_condemned(sights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine([*sights])
    watchdog, _ = watched(engine, monkeypatch)
    pass_by(watchdog, engine, 29)
    assert len(engine.sights) == len(sights)
    pass_by(watchdog, engine, 1 + APART_S * (len(sights) - 1))
    assert len(engine.condemned) == 1
    assert "no progress" in engine.condemned[0]


@pytest.mark.parametrize(
    "sights", [[(None, 0.0), (None, 2.0)], [(STUCK, 0.0), (FURTHER, 0.0)], [(STUCK, 0.0), ([], 0.0)]]
)
def test_an_engine_for_which_something_speaks_is_left_alone(sights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine([*sights])
    watchdog, _ = watched(engine, monkeypatch)
    pass_by(watchdog, engine, 30 + APART_S)
    assert (engine.sights, engine.condemned) == ([], [])


def test_a_sign_of_life_ends_the_suspicion(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine([(None, 0.0)])
    watchdog, pulse = watched(engine, monkeypatch)
    pass_by(watchdog, engine, 29)
    assert watchdog.serving.silence == ""
    pass_by(watchdog, engine, 2)
    assert "says nothing" in watchdog.serving.silence, "status tells it before anything is done"
    pulse.beat()
    pass_by(watchdog, engine, 29)
    assert (engine.condemned, watchdog.serving.silence) == ([], "")


def test_an_engine_that_works_for_nobody_is_never_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine([])
    watchdog, _ = watched(engine, monkeypatch, works=False)
    pass_by(watchdog, engine, 1000)
    assert engine.condemned == []


def test_a_restarted_engine_is_judged_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine([(None, 0.0), (None, 0.0)])
    watchdog, _ = watched(engine, monkeypatch)
    pass_by(watchdog, engine, 31)
    engine.pid = 8
    pass_by(watchdog, engine, APART_S)
    assert engine.condemned == []


def test_an_engine_without_work_that_answers_owes_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine([([], 0.0), ([], 0.0)])
    watchdog, pulse = watched(engine, monkeypatch)
    pulse.end(heard=False)
    pass_by(watchdog, engine, 30 + APART_S)
    assert pulse.silent_s() == 0
    assert engine.condemned == []


def test_a_hang_is_seen_before_any_client_s_patience_with_the_defaults_is_over() -> None:
    settings = Settings()
    longest_s = settings.hang_s + 2 * APART_S
    assert longest_s < settings.between_tokens_timeout_s <= settings.first_token_timeout_s <= settings.answer_timeout_s
