"""Warm-up on the real engine: the first real request on a base that `warm` names finds it in the cache.

The same on a worker that is added later, and where nothing can be saved. Judged by tokens, never by a clock.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra import keys
from tests.acceptance.conftest import StartCluster
from tests.doubles import scripted_model as scripts
from tests.doubles.cluster import Cluster
from tests.doubles.scripted_model import Script
from tests.doubles.services import wait_for

pytestmark = pytest.mark.acceptance
BASE_WORDS = 1500
TOOL = {"name": "Read", "description": "Reads a file.", "input_schema": {"type": "object", "properties": {}}}
SYSTEM = "You are an agent. " + " ".join(f"Rule {number} of {BASE_WORDS // 3}." for number in range(BASE_WORDS // 3))


def recorded(folder: Path) -> Path:
    """A body as a client sent it: attribution, markers, a long conversation."""
    body = {
        "model": "any",
        "stream": True,
        "max_tokens": 32000,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc;"},
            {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}},
        ],
        "tools": [TOOL],
        "tool_choice": {"type": "any"},
        "messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}],
    }
    path = folder / "recorded.json"
    path.write_text(json.dumps(body))
    return path


def prompt_file(folder: Path) -> Path:
    path = folder / "reviewer.md"
    path.write_text(f"Review code. {SYSTEM}\n")
    return path


@pytest.fixture
def files(tmp_path: Path) -> str:
    folder = tmp_path / "warm"
    folder.mkdir()
    return f"{recorded(folder)},{prompt_file(folder)}"


@pytest.fixture
def text_only(model_path: Callable[[Script], Path]) -> Path:
    return model_path(scripts.TEXT_ONLY)


def start(start_cluster: StartCluster, model: Path, **settings: Any) -> Cluster:
    return start_cluster(workers=1, slots=3, model=model, engine="embedded", context_tokens=16384, settings=settings)


def warmed(cluster: Cluster, worker: str, count: int = 2) -> list[dict[str, Any]]:
    """What the API has told of the worker's warm-ups, once there are `count`."""

    def told() -> list[dict[str, Any]]:
        lines = cluster.log_lines()
        return [line for line in lines if line["event"] == "warmed" and line["worker"] == worker]

    wait_for(lambda: len(told()) >= count, f"{count} warm-ups of {worker}", 60)
    return told()


def first_request(cluster: Cluster, session: str, system: str, tools: list[Any]) -> tuple[float, str]:
    """Which part of the prompt was cached, and the worker."""
    answer = cluster.messages(
        "What is to be done?",
        headers={"x-claude-code-session-id": session},
        system=system,
        max_tokens=8,
        **({"tools": tools} if tools else {}),
    )
    assert answer.status_code == 200, answer.text
    said = answer.headers
    return int(said["x-corral-cached-tokens"]) / int(said["x-corral-prompt-tokens"]), said["x-corral-worker"]


def test_the_first_request_of_a_named_agent_finds_its_base_on_every_worker(
    start_cluster: StartCluster, text_only: Path, files: str
) -> None:
    cluster = start(start_cluster, text_only, warm=files)
    bases = [(SYSTEM, [TOOL]), (f"Review code. {SYSTEM}", [])]
    by_name = {line["base"]: line for line in warmed(cluster, "w1")}
    assert set(by_name) == {"recorded.json", "reviewer.md"}
    assert all(line["tokens"] > 1000 and line["seconds"] >= 0 for line in by_name.values())
    for number, (system, tools) in enumerate(bases):
        share, _ = first_request(cluster, f"first-{number}", system, tools)
        assert share >= 0.9
    assert cluster.redis.zcard(keys.homes("w1")) == len(bases), "a warm-up is nobody's conversation"

    cluster.add_worker("w2")
    for line in warmed(cluster, "w2"):
        assert line["cached_tokens"] >= 0.9 * line["tokens"], "the store had it"
    saved = [json.loads(path.read_text()) for path in (cluster.folder / "data" / "kv").glob("*.b-*.json")]
    assert [entry["return_chance"] for entry in saved] == [1, 1], "a full store gives up others first"
    cluster.stop_worker("w1")
    cluster.wait_worker("w1", "gone")
    for number, (system, tools) in enumerate(bases):
        share, name = first_request(cluster, f"second-{number}", system, tools)
        assert (name, share >= 0.9) == ("w2", True)


def test_where_nothing_is_saved_idle_slots_are_kept_warm(
    start_cluster: StartCluster, text_only: Path, files: str
) -> None:
    cluster = start(start_cluster, text_only, warm=files, store_dir="off")
    warmed(cluster, "w1")
    slots = cluster.status()["workers"][0]["slots"]
    assert [slot["conversation"] for slot in slots] == [None] * 3, "a warm slot is free"
    other, _ = first_request(cluster, "other", "Something else entirely.", [])
    assert other < 0.5  # and took none of the warm ones:
    for session, system, tools in [("one", SYSTEM, [TOOL]), ("two", f"Review code. {SYSTEM}", [])]:
        share, _ = first_request(cluster, session, system, tools)
        assert share >= 0.9
