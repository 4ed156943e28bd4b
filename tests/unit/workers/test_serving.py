"""An engine that is over for good ends its worker, with the reason; one that was stopped does not."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import structlog

from infra import store_folder
from infra.config import Settings
from infra.errors import StartError
from scheduler.contract import Rates, WorkerState
from tests.doubles.cluster import empty_model
from workers import app
from workers import serving as serving_module
from workers.heartbeat import Heartbeat
from workers.llama import engine_log
from workers.llama.command import Engine
from workers.llama.model import ModelProfile
from workers.llama.probe import EngineProps
from workers.llama.process import EngineProcess, EngineState
from workers.running import Running
from workers.serving import Serving

pytestmark = pytest.mark.unit
WAIT_S = 10


class Heart:
    def soon(self) -> None:
        """Nobody listens."""


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the process tells itself to end."""
    told = threading.Event()

    def kill(pid: int, number: int) -> None:
        assert (pid, number) == (os.getpid(), signal.SIGTERM)
        told.set()

    monkeypatch.setattr(os, "kill", kill)
    return told


def serving(folder: Path, monkeypatch: pytest.MonkeyPatch, after_ready: Callable[[EngineProcess], None]) -> Serving:
    """A worker whose engine is ready at once; its supervisor goes on with `after_ready`."""
    model = empty_model(folder)

    def keep_running(self: EngineProcess) -> None:
        self._props = EngineProps(1, 4096, False, str(model), "b1", "")
        self._change(EngineState.READY)
        after_ready(self)

    monkeypatch.setattr(EngineProcess, "_keep_running", keep_running)
    engine = Engine("native", "llama-server", ("llama-server",))
    return Serving(Settings(data_dir=folder, slots=1), engine, model, ModelProfile())


def test_a_store_that_cannot_be_used_is_warned_of_once_in_the_words_of_the_doctor(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    engine, model = Engine("native", "llama-server", ("llama-server",)), empty_model(tmp_path)
    with structlog.testing.capture_logs() as logged:
        for store_dir in (str(tmp_path / "file"), "off", str(tmp_path / "kv")):
            Serving(Settings(data_dir=tmp_path, store_dir=store_dir), engine, model, ModelProfile())
    reason = store_folder.trouble(tmp_path / "file")
    assert reason
    assert [(line["event"], line["reason"]) for line in logged if line["log_level"] == "warning"] == [
        ("store_not_used", reason)
    ]


def test_a_supervisor_that_fails_ends_the_worker_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: threading.Event
) -> None:
    ready = threading.Event()

    def fails(_: EngineProcess) -> None:
        assert ready.wait(WAIT_S)
        raise RuntimeError("no more threads")

    made = serving(tmp_path, monkeypatch, fails)

    def work() -> None:
        with app._engine(made, cast(Heartbeat, Heart()), Running(), WAIT_S):
            ready.set()
            assert killed.wait(WAIT_S)
            raise SystemExit(0)  # as the signal does

    with pytest.raises(StartError, match="engine: its supervisor failed: no more threads"):
        work()
    assert made.usable_slots() == 0


def test_an_engine_that_is_stopped_with_its_worker_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: threading.Event
) -> None:
    def until_stopped(engine: EngineProcess) -> None:
        assert engine._stop.wait(WAIT_S)

    made = serving(tmp_path, monkeypatch, until_stopped)
    with app._engine(made, cast(Heartbeat, Heart()), Running(), WAIT_S):
        assert made.usable_slots() == 1
        assert made._ready_client()._rest_s == 0.032  # `delta_batch_ms`, as it is where nobody sets it
        assert made.prefill_tokens_per_s == made.rates.prefill_tokens_per_s == Rates().prefill_tokens_per_s
        assert made.caches is not None
        made.caches.meter.prefilled(9000, 1000)
        assert made.prefill_tokens_per_s == made.rates.prefill_tokens_per_s == 9000
    assert made.engine.state is EngineState.STOPPED
    assert not killed.is_set()


@pytest.mark.parametrize("answers", [True, False])
def test_an_engine_that_takes_a_connection_and_drops_it_unanswered_is_gone(answers: bool) -> None:
    """As a killed process does whose last socket is not closed yet."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" if answers else b"")

        thread = threading.Thread(target=serve)
        thread.start()
        assert serving_module._answers(f"http://127.0.0.1:{server.getsockname()[1]}") is answers
        thread.join(WAIT_S)


def test_an_engine_that_takes_no_connection_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    assert not serving_module._answers(url)


@pytest.mark.parametrize(
    ("reason", "said", "condemned"),
    [
        ("the engine was silent", "", []),
        ("the engine could not compute", "CUDA error: out of memory\n", ["the memory of the card is full"]),
        (f"short{engine_log.CARD_REMEDY}", "", ["short"]),
    ],
)
def test_an_engine_that_answers_but_is_short_of_memory_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str, said: str, condemned: list[str]
) -> None:
    monkeypatch.setattr(serving_module, "_answers", lambda _: True)
    told: list[str] = []

    def until_stopped(engine: EngineProcess) -> None:
        assert engine._stop.wait(WAIT_S)

    made = serving(tmp_path, monkeypatch, until_stopped)
    with app._engine(made, cast(Heartbeat, Heart()), Running(), WAIT_S):
        made.on_condemned = told.append
        made.engine.log_path.parent.mkdir(parents=True, exist_ok=True)
        made.engine.log_path.write_text(said)
        made.doubt(reason)
        assert [words.partition(":")[0].partition(";")[0] for words in told] == condemned
        assert made.usable_slots() == 1


def test_a_worker_set_aside_says_why_and_takes_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def until_stopped(engine: EngineProcess) -> None:
        assert engine._stop.wait(WAIT_S)

    made = serving(tmp_path, monkeypatch, until_stopped)
    with app._engine(made, cast(Heartbeat, Heart()), Running(), WAIT_S):
        made.set_aside(WorkerState.RESTARTING, "its memory grew")
        info = made.info("1", 0)
        assert (info.state, info.reason, made.usable_slots()) == (WorkerState.RESTARTING, "its memory grew", 0)
        made.set_aside(None)
        assert (made.info("1", 0).reason, made.usable_slots()) == ("", 1)
