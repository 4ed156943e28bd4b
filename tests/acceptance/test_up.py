"""`corral up` with everything real: broker, API, workers, engine, and Claude Code started by `corral claude`."""

import json
import shlex
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import psutil
import pytest

from tests.doubles import claude
from tests.doubles.cluster import empty_model, json_lines, standin_command
from tests.doubles.corral import Corral, address, said, until_said
from tests.doubles.processes import Child
from tests.doubles.scripted_model import TOOL_THEN_TEXT, Script
from tests.doubles.services import wait_for

pytestmark = pytest.mark.acceptance

EMBEDDED = {"CORRAL_LLAMA_SERVER": "embedded", "CORRAL_LOG_FORMAT": "json", "CORRAL_DRAIN_S": "5"}


@pytest.fixture
def corral(tmp_path: Path) -> Iterator[Corral]:
    with Corral(tmp_path, EMBEDDED) as running:
        yield running


@pytest.fixture
def pretended_engine(tmp_path: Path) -> tuple[str, dict[str, str]]:
    """The model option and the variables for an engine that writes slowly."""
    command = standin_command(tmp_path, decode_tokens_per_s=20)
    return str(empty_model(tmp_path)), {"CORRAL_LLAMA_SERVER": str(command)}


def status(url: str) -> dict[str, Any]:
    return dict(httpx.get(f"{url}/v1/status", timeout=10, trust_env=False).json())


def states(url: str) -> dict[str, str]:
    return {worker["name"]: worker["state"] for worker in status(url)["workers"]}


def requests(corral: Corral) -> list[dict[str, Any]]:
    return [line for line in json_lines(corral.data / "logs" / "api.log") if line.get("event") == "request"]


def ended_well(up: Child, corral: Corral) -> None:
    """Every part ended by itself when asked, and nothing is left."""
    assert up.wait(40) == 0
    assert "and was killed" not in said(up)
    assert corral.left() == []


def last_line(child: Child) -> str:
    return said(child).splitlines()[-1]


def test_claude_code_works_through_two_commands(corral: Corral, model_path: Callable[[Script], Path]) -> None:
    program = claude.find_or_install()
    model = str(model_path(TOOL_THEN_TEXT))
    up = corral.serving("--model", model, "--workers", "2", "--slots", "2", "--context", "65536", "--threads", "1")
    url = address(up)
    arguments = ("-p", "run it", "--allowedTools", "Bash", "--output-format", "json")
    session = corral.run(
        *("claude", "--url", url, "--agent", "tester", "--priority", "2", "--", *arguments),
        PATH=f"{program.parent}:{corral.variables['PATH']}",
        IS_SANDBOX="1",
        TERM="xterm",
    )
    assert session.wait(90) == 0, said(session)
    result = json.loads(last_line(session))
    assert (result["result"], result["num_turns"]) == (TOOL_THEN_TEXT.answer, 2)
    first, second = wait_for(lambda: requests(corral)[1:] and requests(corral), "two log lines")
    assert {line["agent"] for line in (first, second)} == {"tester"}
    assert {line["level"] for line in (first, second)} == {2}
    assert (first["worker"], first["slot"]) == (second["worker"], second["slot"])
    assert second["cached_tokens"] >= 0.95 * second["prompt_tokens"]

    shown = corral.run("status", "--url", url)
    assert shown.wait() == 0
    assert "tester" in said(shown)
    up.send(signal.SIGTERM)
    ended_well(up, corral)


def test_the_demo_model_answers_the_official_client_and_is_called_a_demo(corral: Corral) -> None:
    up = corral.serving("--slots", "1", "--context", "4096")
    assert "proves that the path works" in said(up)
    with anthropic.Anthropic(base_url=address(up), api_key="any", max_retries=0) as client:
        question = {"role": "user", "content": "What is the capital of France?"}
        answer = client.messages.create(model="any", max_tokens=20, messages=[question])  # type: ignore[list-item]
    assert answer.usage.output_tokens > 0
    up.send(signal.SIGTERM)
    ended_well(up, corral)


def test_an_answer_that_runs_may_end_when_up_is_stopped(
    corral: Corral, pretended_engine: tuple[str, dict[str, str]]
) -> None:
    model, variables = pretended_engine
    up = corral.serving("--model", model, "--workers", "1", **variables)
    body = {
        "model": "any",
        "max_tokens": 100,
        "stream": True,
        "messages": [{"role": "user", "content": "say 60 words"}],
    }
    with (
        httpx.Client(trust_env=False, timeout=30) as client,
        client.stream("POST", f"{address(up)}/v1/messages", json=body) as answer,
    ):
        lines = answer.iter_lines()
        next(line for line in lines if "content_block_delta" in line)
        up.send(signal.SIGINT)
        until_said(up, "Stopping API")
        rest = "\n".join(lines)
    assert "w60" in rest
    assert "message_stop" in rest
    ended_well(up, corral)


def test_an_only_api_that_is_killed_comes_back_at_its_address(
    corral: Corral, pretended_engine: tuple[str, dict[str, str]]
) -> None:
    model, variables = pretended_engine
    up = corral.serving("--model", model, "--workers", "1", **variables)
    (api,) = corral.running("api.app")
    api.kill()
    until_said(up, "API: started again")
    with anthropic.Anthropic(base_url=address(up), api_key="any", max_retries=8) as client:
        question = {"role": "user", "content": "say 5 words"}
        answer = client.messages.create(model="any", max_tokens=20, messages=[question])  # type: ignore[list-item]
    assert [block.text for block in answer.content if block.type == "text"] == ["w1 w2 w3 w4 w5"]
    up.send(signal.SIGINT)
    ended_well(up, corral)


def test_not_even_the_engine_survives_a_killed_up(corral: Corral, pretended_engine: tuple[str, dict[str, str]]) -> None:
    model, variables = pretended_engine
    up = corral.serving("--model", model, "--workers", "2", **variables)
    engines = [worker["engine_pid"] for worker in status(address(up))["workers"]]
    assert all(psutil.pid_exists(pid) for pid in engines)
    up.send(signal.SIGKILL)
    up.wait()
    wait_for(lambda: not corral.left(), "everything to die with its parent")


def test_an_engine_gets_the_cards_it_is_given(corral: Corral, pretended_engine: tuple[str, dict[str, str]]) -> None:
    model, variables = pretended_engine
    up = corral.serving("--model", model, "--gpu", "0,1,2", "--workers", "2", **variables)
    workers = status(address(up))["workers"]
    visible = {w["name"]: psutil.Process(w["engine_pid"]).environ()["CUDA_VISIBLE_DEVICES"] for w in workers}
    assert visible == {"w1": "0,1", "w2": "2"}
    up.send(signal.SIGTERM)
    ended_well(up, corral)


def test_a_worker_joins_a_running_cluster_by_one_command(
    corral: Corral, pretended_engine: tuple[str, dict[str, str]], broker_url: str
) -> None:
    model, variables = pretended_engine
    variables |= {"CORRAL_REDIS_URL": broker_url}
    up = corral.serving("--model", model, "--workers", "1", **variables)
    added = corral.run("worker", "--name", "attic", "--model", model, "--data-dir", str(corral.data), **variables)
    wait_for(lambda: states(address(up)).get("attic") == "ready", "the added worker to be ready")
    assert len(states(address(up))) == 2
    assert added.stop() == 0
    wait_for(lambda: "attic" not in states(address(up)), "the worker to be gone")
    up.send(signal.SIGTERM)
    ended_well(up, corral)


@pytest.mark.parametrize("flags", ["--port 9", "-np 2"])
def test_an_engine_flag_that_corral_owns_is_refused_by_name(corral: Corral, flags: str) -> None:
    up = corral.up(f"--engine-args={flags}")
    assert up.wait(60) != 0
    assert last_line(up).startswith("error: ")
    assert shlex.split(flags)[0] in last_line(up)
    assert corral.left() == []


def test_a_broken_model_is_one_sentence_and_nothing_is_left(corral: Corral, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 4096)
    up = corral.up("--model", str(broken))
    assert up.wait(60) == 1
    assert last_line(up).startswith(f"error: model: {broken} ")
    assert "Traceback" not in said(up)
    assert corral.left() == []


def test_a_model_that_the_engine_refuses_is_one_sentence_and_nothing_is_left(corral: Corral, tmp_path: Path) -> None:
    refused = tmp_path / "refused.gguf"
    # One tensor without a name, of one F32 value, and no architecture: whole, but no engine knows what it is.
    tensor = struct.pack("<QIQIQ", 0, 1, 1, 0, 0)
    refused.write_bytes((b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor).ljust(64, b"\0") + struct.pack("<f", 1))
    up = corral.up("--model", str(refused))
    assert up.wait(60) == 1
    assert last_line(up).startswith("error: worker w1: ")
    assert "Traceback" not in said(up)
    assert corral.left() == []
