"""The engine's life: started, ready, crashed, restarted, stopped. The engine here is a small stand-in process."""

import json
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.config import Settings
from infra.errors import ConfigError, StartError
from infra.network import free_port
from scheduler.policy import restarting
from workers.llama import probe, process
from workers.llama.command import Engine
from workers.llama.model import ModelProfile
from workers.llama.process import EngineProcess, EngineState

pytestmark = pytest.mark.unit

# Answers as llama-server does on its control routes. What it does besides is written into STAND_IN_MODE.
STAND_IN = """
import http.server, json, os, pathlib, sys
arguments = sys.argv[1:]
option = lambda name: arguments[arguments.index(name) + 1]
folder, mode = pathlib.Path(os.environ["STAND_IN_FOLDER"]), os.environ.get("STAND_IN_MODE", "")
with (folder / "starts").open("a") as starts:
    starts.write(json.dumps({"arguments": arguments, "environment": dict(os.environ)}) + "\\n")
if mode == "refuse":
    sys.exit("0.00.001.464 E cmn  common_init_: error loading model: unknown model architecture: 'x'")

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/health":
            return self.answer(503 if mode == "load" else 200, {})
        if self.headers["Authorization"] != "Bearer " + os.environ["LLAMA_API_KEY"]:
            return self.answer(401, {})
        self.answer(200, {"total_slots": int(option("-np")), "model_path": option("-m"), "build_info": "b1-abc",
            "default_generation_settings": {"n_ctx": 4096}, "modalities": {"vision": True}, "chat_template": "T"})
    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer.allow_reuse_address = False
try:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler)
except OSError:
    sys.exit("E srv start: couldn't bind HTTP server socket")
server.serve_forever()
"""
WAIT_S = 30

Make = Callable[..., EngineProcess]


@pytest.fixture
def changes() -> "queue.Queue[EngineState]":
    return queue.Queue()


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: "queue.Queue[EngineState]") -> Iterator[Make]:
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setenv("STAND_IN_FOLDER", str(tmp_path))
    monkeypatch.setattr(process, "LOADING_PROBE_S", 0.02)
    monkeypatch.setattr(restarting, "FIRST_S", 0.01)
    made: list[EngineProcess] = []

    def build(mode: str = "", on_change: Callable[[EngineState], None] = changes.put, **values: Any) -> EngineProcess:
        monkeypatch.setenv("STAND_IN_MODE", mode)
        settings = Settings(data_dir=tmp_path / "data", slots=3, **values)
        engine = Engine("native", str(script), (sys.executable, str(script)))
        made.append(EngineProcess(settings, engine, Path("/models/a.gguf"), ModelProfile(), on_change))
        return made[-1]

    yield build
    for engine in made:
        engine.stop(0)


def starts(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "starts").read_text().splitlines()]


def seen(changes: "queue.Queue[EngineState]", last: EngineState) -> list[EngineState]:
    found = [changes.get(timeout=WAIT_S)]
    while found[-1] is not last:
        found.append(changes.get(timeout=WAIT_S))
    return found


def test_a_started_engine_becomes_ready_and_tells_what_it_is(make: Make, changes: "queue.Queue[EngineState]") -> None:
    engine = make()
    engine.start()
    props = engine.wait_ready(WAIT_S)
    assert props == probe.EngineProps(3, 4096, True, "/models/a.gguf", "b1-abc", "T")
    assert engine.props is props
    assert engine.rss_bytes() > 0
    assert psutil.pid_exists(engine.pid)
    assert seen(changes, EngineState.READY) == [EngineState.STARTING, EngineState.READY]


def test_the_key_is_in_the_environment_and_nowhere_else(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_REDIS_URL", "redis://:secret@host")
    engine = make(gpu="1,0")
    engine.start()
    engine.wait_ready(WAIT_S)
    (start,) = starts(tmp_path)
    assert start["environment"]["LLAMA_API_KEY"] == engine.api_key
    assert engine.api_key not in " ".join(start["arguments"])
    assert start["environment"]["CUDA_VISIBLE_DEVICES"] == start["environment"]["HIP_VISIBLE_DEVICES"] == "1,0"
    assert not any(name.startswith("CORRAL_") for name in start["environment"])


def test_a_failed_first_start_is_told_and_not_tried_again(
    make: Make, tmp_path: Path, changes: "queue.Queue[EngineState]"
) -> None:
    engine = make("refuse")
    engine.start()
    with pytest.raises(StartError, match=r"^engine: error loading model: unknown model architecture: 'x'$"):
        engine.wait_ready(WAIT_S)
    assert seen(changes, EngineState.STOPPED) == [EngineState.STARTING, EngineState.FAILING, EngineState.STOPPED]
    assert len(starts(tmp_path)) == 1
    assert engine.pid == engine.rss_bytes() == 0


def test_a_crashed_engine_is_started_again(make: Make, tmp_path: Path, changes: "queue.Queue[EngineState]") -> None:
    engine = make()
    engine.start()
    engine.wait_ready(WAIT_S)
    old = engine.pid, engine.base_url
    os.kill(engine.pid, signal.SIGKILL)
    seen(changes, EngineState.FAILING)
    assert "SIGKILL" in engine.reason
    assert seen(changes, EngineState.READY) == [EngineState.STARTING, EngineState.READY]
    assert (engine.pid, engine.base_url) != old
    assert engine.reason == ""
    assert len(starts(tmp_path)) == 2


def test_an_engine_that_fails_after_it_was_ready_is_tried_again_and_again(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: "queue.Queue[EngineState]"
) -> None:
    engine = make()
    engine.start()
    engine.wait_ready(WAIT_S)
    monkeypatch.setenv("STAND_IN_MODE", "refuse")
    os.kill(engine.pid, signal.SIGKILL)
    for _ in range(3):
        seen(changes, EngineState.FAILING)
    monkeypatch.setenv("STAND_IN_MODE", "")
    seen(changes, EngineState.READY)
    assert len(starts(tmp_path)) >= 4


def test_an_engine_that_hangs_is_replaced(
    make: Make, monkeypatch: pytest.MonkeyPatch, changes: "queue.Queue[EngineState]"
) -> None:
    monkeypatch.setattr(process, "HEALTH_PROBE_S", 0.02)
    monkeypatch.setattr(process, "SILENCE_LIMIT_S", 0.2)
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.1)
    engine = make()
    engine.start()
    engine.wait_ready(WAIT_S)
    os.kill(engine.pid, signal.SIGSTOP)
    seen(changes, EngineState.FAILING)
    assert "did not answer" in engine.reason


def test_a_taken_port_is_changed_for_another(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: "queue.Queue[EngineState]"
) -> None:
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ports = iter([other.getsockname()[1], free_port()])
        monkeypatch.setattr(process, "free_port", lambda: next(ports))
        engine = make()
        engine.start()
        engine.wait_ready(WAIT_S)
    assert len(starts(tmp_path)) == 2
    assert EngineState.FAILING not in seen(changes, EngineState.READY)


def test_a_model_that_loads_for_too_long_is_an_error_that_names_the_setting(make: Make) -> None:
    engine = make("load", engine_start_timeout_s=0.3)
    engine.start()
    with pytest.raises(StartError, match=r"within 0.3 s.*CORRAL_ENGINE_START_TIMEOUT_S"):
        engine.wait_ready(WAIT_S)


def test_who_waits_for_a_loading_engine_can_give_up(make: Make) -> None:
    engine = make("load")
    engine.start()
    with pytest.raises(StartError, match="did not load within"):
        engine.wait_ready(0.05)
    assert engine.state is EngineState.STARTING


def test_stop_ends_the_engine_and_may_be_repeated(make: Make, changes: "queue.Queue[EngineState]") -> None:
    engine = make()
    engine.start()
    engine.wait_ready(WAIT_S)
    child = psutil.Process(engine.pid)
    engine.stop()
    engine.stop()
    assert not child.is_running()
    assert seen(changes, EngineState.STOPPED)[-2:] == [EngineState.STOPPING, EngineState.STOPPED]
    assert engine.reason == ""


def test_stop_interrupts_loading(make: Make, changes: "queue.Queue[EngineState]") -> None:
    engine = make("load")
    engine.start()
    seen(changes, EngineState.STARTING)
    engine.stop(0)
    assert engine.state is EngineState.STOPPED
    with pytest.raises(StartError, match="it was stopped"):
        engine.wait_ready(0)


def test_stop_interrupts_the_pause_before_a_restart(
    make: Make, monkeypatch: pytest.MonkeyPatch, changes: "queue.Queue[EngineState]"
) -> None:
    monkeypatch.setattr(restarting, "FIRST_S", 3600.0)
    monkeypatch.setattr(restarting, "LONGEST_S", 3600.0)
    engine = make()
    engine.start()
    engine.wait_ready(WAIT_S)
    os.kill(engine.pid, signal.SIGKILL)
    seen(changes, EngineState.FAILING)
    engine.stop()
    assert engine.state is EngineState.STOPPED


def test_an_engine_that_was_never_started_can_be_stopped(make: Make) -> None:
    make().stop()


def test_a_listener_that_fails_does_not_end_the_engine(make: Make) -> None:
    def listener(_: EngineState) -> None:
        raise ValueError("of the listener")

    engine = make(on_change=listener)
    engine.start()
    assert engine.wait_ready(WAIT_S).slots == 3


def test_who_waits_for_the_engine_goes_on_only_when_the_listener_knows(make: Make) -> None:
    went_on, early = threading.Event(), []

    def listener(state: EngineState) -> None:
        if state is EngineState.READY:
            early.append(went_on.wait(0.2))

    engine = make(on_change=listener)
    engine.start()
    engine.wait_ready(WAIT_S)
    went_on.set()
    assert early == [False]


def test_flags_that_corral_owns_are_refused_before_anything_starts(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="-np"):
        make(engine_args="-np 8").start()
    assert not (tmp_path / "starts").exists()


def test_a_log_that_cannot_be_written_is_said(make: Make, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "logs").touch()
    engine = make()
    engine.start()
    with pytest.raises(StartError, match="logs"):
        engine.wait_ready(WAIT_S)


def test_properties_are_not_there_before_the_engine_is(make: Make) -> None:
    with pytest.raises(StartError, match="not been ready"):
        _ = make().props


def test_a_condemned_engine_is_ended_even_when_it_is_stopped_and_started_again(
    make: Make, changes: "queue.Queue[EngineState]"
) -> None:
    engine = make()
    engine.start()
    engine.wait_ready(WAIT_S)
    old = engine.pid
    os.kill(old, signal.SIGSTOP)
    engine.condemn("it made no progress")
    engine.condemn("said twice")
    seen(changes, EngineState.FAILING)
    assert engine.reason == "it made no progress"
    assert seen(changes, EngineState.READY)[-1] is EngineState.READY
    assert engine.pid != old
    assert not psutil.pid_exists(old)


def test_a_planned_end_is_no_failure_and_makes_no_pause(
    make: Make, monkeypatch: pytest.MonkeyPatch, changes: "queue.Queue[EngineState]"
) -> None:
    monkeypatch.setattr(restarting, "FIRST_S", 3600.0)
    engine = make(sick_after=1)
    engine.start()
    engine.wait_ready(WAIT_S)
    seen(changes, EngineState.READY)
    old = engine.pid
    engine.condemn("its memory grew", planned=True)
    assert seen(changes, EngineState.READY) == [EngineState.STARTING, EngineState.READY]
    assert engine.pid != old
    assert not psutil.pid_exists(old)


def test_only_what_was_said_since_it_was_ready_is_a_want_of_memory(make: Make) -> None:
    engine = make()
    engine.log_path.parent.mkdir(parents=True)
    engine.log_path.write_text("CUDA error: out of memory\n")
    engine.start()
    engine.wait_ready(WAIT_S)
    assert engine.want_of_memory() == ""
    with engine.log_path.open("a") as log:
        log.write("CUDA error: out of memory\n")
    assert "card is full" in engine.want_of_memory()


def test_nothing_is_condemned_that_is_not_ready(make: Make) -> None:
    engine = make("load")
    engine.condemn("nothing is there")
    engine.start()
    engine.condemn("it loads")
    engine.stop(0)
    assert "it loads" not in engine.reason


def test_an_engine_that_fails_again_and_again_is_sick_and_says_why(
    make: Make, monkeypatch: pytest.MonkeyPatch, changes: "queue.Queue[EngineState]"
) -> None:
    monkeypatch.setattr(restarting, "SICK_FIRST_S", 3600.0)
    monkeypatch.setattr(restarting, "SICK_LONGEST_S", 3600.0)
    engine = make(sick_after=2)
    engine.start()
    for state in (EngineState.FAILING, EngineState.SICK):
        seen(changes, EngineState.READY)
        os.kill(engine.pid, signal.SIGKILL)
        seen(changes, state)
    assert engine.reason.startswith("its engine failed 2 times in a row and is tried again in 3600 s; the last time: ")
    assert "SIGKILL" in engine.reason
    engine.stop(0)


def test_a_sick_engine_is_tried_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, changes: "queue.Queue[EngineState]"
) -> None:
    monkeypatch.setattr(restarting, "SICK_FIRST_S", 0.01)
    engine = make(sick_after=1)
    engine.start()
    seen(changes, EngineState.READY)
    os.kill(engine.pid, signal.SIGKILL)
    seen(changes, EngineState.SICK)
    assert seen(changes, EngineState.READY) == [EngineState.STARTING, EngineState.READY]
    assert engine.reason == ""
