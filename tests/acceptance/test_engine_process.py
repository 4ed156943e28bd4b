"""The real embedded engine under its supervisor: it loads, answers, comes back, and never outlives its parent."""

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from infra import guard
from infra.config import Settings
from infra.errors import StartError
from infra.network import free_port
from workers.llama import command
from workers.llama.command import choose_engine
from workers.llama.model import ModelProfile, profile, resolve
from workers.llama.probe import Health, Probe
from workers.llama.process import EngineProcess, EngineState

pytestmark = pytest.mark.acceptance

READY_S, SLOTS, WINDOW = 60, 2, 4096
# A parent that owns an engine and waits to be killed.
PARENT = """
import pathlib, sys
from infra.config import Settings
from workers.llama.command import choose_engine
from workers.llama.model import profile
from workers.llama.process import EngineProcess
settings = Settings(data_dir=sys.argv[1], llama_server="embedded", slots=1, context_tokens=1024)
path = pathlib.Path(sys.argv[2])
engine = EngineProcess(settings, choose_engine(settings), path, profile(path, True), lambda _: None)
engine.start()
engine.wait_ready(60)
print("engine", engine.pid, flush=True)
sys.stdin.read()
"""


def engine_settings(data_dir: Path, **values: Any) -> Settings:
    return Settings(data_dir=data_dir, llama_server="embedded", slots=SLOTS, context_tokens=WINDOW, threads=1, **values)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def demo(data_dir: Path) -> Path:
    path = resolve("demo", data_dir)
    assert isinstance(path, Path)
    return path


@pytest.fixture(scope="module")
def changes() -> "queue.Queue[EngineState]":
    return queue.Queue()


@pytest.fixture(scope="module")
def engine(data_dir: Path, demo: Path, changes: "queue.Queue[EngineState]") -> Iterator[EngineProcess]:
    settings = engine_settings(data_dir, gpu="0")
    process = EngineProcess(settings, choose_engine(settings), demo, profile(demo, is_demo=True), changes.put)
    process.start()
    process.wait_ready(READY_S)
    yield process
    process.stop()


def ask(engine: EngineProcess, route: str, body: dict[str, Any]) -> Any:
    headers = {"Authorization": f"Bearer {engine.api_key}"}
    answer = httpx.post(engine.base_url + route, json=body, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_engine_says_what_was_asked_of_it(engine: EngineProcess, demo: Path) -> None:
    assert (engine.props.slots, engine.props.context_tokens) == (SLOTS, WINDOW)
    assert engine.props.model_path == str(demo)
    assert engine.props.vision is False
    assert engine.props.build.startswith("xllamacpp ")
    assert "Question: " in engine.props.chat_template
    assert engine.rss_bytes() > demo.stat().st_size


def test_the_engines_process_shows_its_cards_and_not_its_key_to_others(engine: EngineProcess) -> None:
    process = psutil.Process(engine.pid)
    assert process.environ()["CUDA_VISIBLE_DEVICES"] == process.environ()["HIP_VISIBLE_DEVICES"] == "0"
    assert engine.api_key not in " ".join(process.cmdline())


def test_nobody_without_the_key_is_served(engine: EngineProcess) -> None:
    assert httpx.get(engine.base_url + "/props", trust_env=False).status_code == 401


@pytest.mark.parametrize("with_tools", [False, True])
def test_the_demo_model_knows_the_capital_of_france(engine: EngineProcess, with_tools: bool) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    if with_tools:
        function = {"name": "t", "description": "x" * 70_000, "parameters": {"type": "object", "properties": {}}}
        body["tools"] = [{"type": "function", "function": function}]
        body["messages"].insert(0, {"role": "system", "content": "You are an agent. " * 400})
    stop = list(profile(Path("x"), is_demo=True).stop)
    reply = ask(engine, "/v1/chat/completions", body | {"max_tokens": 24, "temperature": 0, "stop": stop})
    assert "Paris" in reply["choices"][0]["message"]["content"]
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["prompt_tokens"] < 100


def test_the_demo_template_renders_a_tool_loop_without_tools_and_system(engine: EngineProcess) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "t", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": [{"type": "text", "text": "List the files."}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "a.txt"},
        {"role": "assistant", "content": "There is a.txt."},
        {"role": "user", "content": "Thanks.\n"},
    ]
    example = "Question: What is the capital of Italy?\nAnswer: Rome.\n"
    talk = "Question: List the files.\nQuestion: a.txt\nAnswer: There is a.txt.\nQuestion: Thanks.\n"
    assert ask(engine, "/apply-template", {"messages": messages})["prompt"] == example + talk + "Answer:"


def test_a_killed_engine_comes_back(engine: EngineProcess, changes: "queue.Queue[EngineState]") -> None:
    old = engine.pid
    while not changes.empty():
        changes.get()
    os.kill(old, signal.SIGKILL)
    came = [changes.get(timeout=READY_S) for _ in range(3)]
    assert came == [EngineState.FAILING, EngineState.STARTING, EngineState.READY]
    assert engine.pid != old
    assert ask(engine, "/tokenize", {"content": "a"})["tokens"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_embedded_engine_ends_with_0_in_the_middle_of_an_answer(
    tmp_path: Path, demo: Path, number: signal.Signals
) -> None:
    settings, port = engine_settings(tmp_path), free_port()
    line = command.command(choose_engine(settings), settings, demo, port, ModelProfile())
    environment = command.environment(settings, "key", os.environ)
    child = guard.spawn(line, env=environment, log_path=tmp_path / "log")
    with Probe(port, "key") as probe:
        while probe.health() is not Health.OK:
            assert not guard.wait_for_exit(child, 0.1)
    body = {"prompt": "The", "n_predict": 4000, "stream": True}
    headers = {"Authorization": "Bearer key"}
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False) as client,
        client.stream("POST", "/completion", json=body) as answer,
    ):
        next(answer.iter_lines())
        child.send_signal(number)
        assert child.wait(10) == 0


def test_no_engine_outlives_its_parent(data_dir: Path, demo: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(data_dir / "orphan"), str(demo)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    child = next(psutil.Process(int(line.split()[1])) for line in parent.stdout if line.startswith("engine "))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    parent.stdin.close()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("engine_args", "message"),
    [
        ("--nope", "--nope is not known"),
        ("--mmproj {file}", "multimodal|CLIP"),
        ("-ctk q9", "-ctk: `q9` is not allowed"),
    ],
)
def test_what_keeps_the_engine_from_starting_is_said_in_one_sentence(
    tmp_path: Path, demo: Path, engine_args: str, message: str
) -> None:
    (tmp_path / "file").write_text("not a model")
    settings = engine_settings(tmp_path, engine_args=engine_args.format(file=tmp_path / "file"))
    process = EngineProcess(settings, choose_engine(settings), demo, ModelProfile(), lambda _: None)
    process.start()
    with pytest.raises(StartError, match=rf"^engine: [^\n]*({message})[^\n]*$"):
        process.wait_ready(READY_S)
    process.stop()
