"""A trace of live agents on the real engine: not a word of theirs, and played again it is the same work."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from infra.bench import agents, record
from infra.bench.record import Listening
from infra.bench.trace import Trace, read
from infra.errors import ConfigError, EngineError
from tests.acceptance.conftest import RealCluster, running
from tests.doubles.cluster import Cluster
from tests.doubles.scripted_model import LONG_TEXT
from tests.doubles.services import wait_for

pytestmark = pytest.mark.acceptance

WINDOW = 8
FEW_PER_CENT, FEW_TOKENS = 0.04, 25  # a made-up word has more or fewer tokens than the next one
AGENTS, TURNS, SUBAGENT_TURNS = 2, 3, 3
REQUESTS = AGENTS * (TURNS * 2 + SUBAGENT_TURNS)  # a side call beside each turn, one subagent an agent
LIFE: dict[str, Any] = {"agents": AGENTS, "turns": TURNS, "subagents": 1, "sides": 1, "gap": 0.05, "repeat": 1}
SAID = "The quick brown fox of project Zephyr jumps over 4711 lazy dogs"


@pytest.fixture(scope="module")
def cluster(real: RealCluster) -> Cluster:
    return real(LONG_TEXT)


class Recorder:
    """`corral bench record` in a thread, once it listens."""

    def __init__(self, cluster: Cluster, out: Path, requests: int) -> None:
        self.out = out
        options = {"out": out, "url": cluster.url, "requests": requests, "for_s": 120.0}
        self._thread = threading.Thread(target=record.main, kwargs=options, daemon=True)
        self._thread.start()
        wait_for(lambda: out.exists() and out.stat().st_size > 0, "the recording to begin")

    def ended(self) -> Path:
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.out


def test_a_life_is_recorded_and_played_again_with_the_same_prompts_and_the_same_beginnings(
    cluster: Cluster, tmp_path: Path
) -> None:
    recorder = Recorder(cluster, tmp_path / "first.jsonl", REQUESTS)
    agents.main(url=cluster.url, base=1500, words="60-120", seed="lived", **LIFE)
    lived = read(recorder.ended())
    again = Recorder(cluster, tmp_path / "second.jsonl", REQUESTS)
    file = tmp_path / "figures.json"
    agents.main(url=cluster.url, trace=recorder.out, speed=2.0, repeat=1, seed="played", json_file=file)
    played = read(again.ended())
    (figures,) = orjson.loads(file.read_bytes())["arms"]["corral"]["rounds"]
    assert (figures["requests"], figures["failed"]) == (REQUESTS, 0)
    assert kinds(played) == kinds(lived)
    for one, other in zip(turns(lived), turns(played), strict=True):
        assert near(one["prompt"], other["prompt"]), (one, other)
        assert near(one["shared"], other["shared"]), (one, other)
    assert len({prompt[0] for prompt in played.prompts}) == len({prompt[0] for prompt in lived.prompts})


def kinds(trace: Trace) -> list[str]:
    return sorted(request.kind.value for request in trace.requests)


def turns(trace: Trace) -> list[dict[str, Any]]:
    """For each turn its kind, its place, its tokens and those it shares with the turn before, in an order of sizes."""
    found = []
    for request, prompt, number in zip(trace.requests, trace.prompts, trace.numbers, strict=True):
        shared = sum(tokens for _, tokens in prompt[: request.keeps])
        found.append((request.kind.value, number, request.prompt_tokens, shared))
    return [{"kind": kind, "number": n, "prompt": p, "shared": s} for kind, n, p, s in sorted(found)]


def near(one: int, other: int) -> bool:
    return abs(one - other) <= max(FEW_TOKENS, FEW_PER_CENT * one)


def test_no_eight_letters_of_any_prompt_answer_or_name_are_in_the_file(cluster: Cluster, tmp_path: Path) -> None:
    recorder = Recorder(cluster, tmp_path / "trace.jsonl", 3)
    tool = {"name": "LaunchRocket", "description": f"{SAID} of the tool", "input_schema": {"type": "object"}}
    who = {"x-agent-id": "Anna Schmidt", "x-claude-code-session-id": "Session-Of-Anna"}
    said, answers = [{"role": "user", "content": SAID}], []
    for number in range(3):
        fields = {"system": f"{SAID} of the system", "tools": [tool], "max_tokens": 40}
        answer = cluster.http.post("/v1/messages", json={"model": "any", "messages": said, **fields}, headers=who)
        answers.append(answer.json()["content"][0]["text"])
        said += [{"role": "assistant", "content": answers[-1]}, {"role": "user", "content": f"{SAID} turn {number}"}]
    told = recorder.ended().read_text()
    texts = [SAID, f"{SAID} of the system", tool["description"], "LaunchRocket", *who.values(), *answers]
    texts += [entry["content"] for entry in said]
    assert all(len(text) > WINDOW for text in texts)
    found = {text[at : at + WINDOW] for text in texts for at in range(len(text) - WINDOW + 1)}
    assert [piece for piece in found if str(piece).lower() in told.lower()] == []
    assert read(recorder.out).numbers == [0, 1, 2]


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Cluster]:
    """Two API processes on one port, and a key."""
    with running(tmp_path / "0", workers=1, api_count=2, one_port=True, settings={"api_keys": "team:secret"}) as found:
        yield found


async def test_all_processes_of_a_gateway_are_heard_with_one_salt(several: Cluster) -> None:
    async with Listening(several.url, "secret") as listening:
        assert (listening.processes, listening.missed) == (2, 0)
        shapes = listening.shapes()
        heard: dict[str, list[str]] = {}
        headers = {"x-api-key": "secret", "x-agent-id": "one-agent"}
        for number in range(64):
            with httpx.Client(base_url=several.url, trust_env=False, timeout=30) as http:
                body = {"model": "any", "max_tokens": 4, "messages": [{"role": "user", "content": f"ask {number}"}]}
                assert (await asyncio.to_thread(http.post, "/v1/messages", json=body, headers=headers)).is_success
            api, shape = await anext(shapes)
            heard.setdefault(api, []).append(shape["agent"])
            if len(heard) == 2:
                break
        await shapes.aclose()  # type: ignore[attr-defined]
    assert len(heard) == 2
    assert len({agent for names in heard.values() for agent in names}) == 1


def test_who_has_no_key_hears_nothing(several: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wants a key that it knows: give --key"):
        record.main(out=tmp_path / "t", url=several.url, key="wrong")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("salt", [None, "", "xx", "ab" * 15])
def test_a_recording_needs_a_salt(cluster: Cluster, salt: str | None) -> None:
    answer = cluster.http.get("/v1/shapes", headers={} if salt is None else {"x-corral-salt": salt})
    assert (answer.status_code, "x-corral-salt" in answer.json()["error"]["message"]) == (400, True)


def test_a_file_that_is_there_is_not_written_over_and_an_empty_recording_leaves_none(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    there.write_text("mine")
    with pytest.raises(ConfigError, match="file exists"):
        record.main(out=there, url=cluster.url)
    with pytest.raises(EngineError, match="no request was answered"):
        record.main(out=tmp_path / "none", url=cluster.url, for_s=0.2)
    assert there.read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["there"]
    assert "for 0.2 s" in capsys.readouterr().out


def test_nobody_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nobody answers there"):
        record.main(out=tmp_path / "t", url="http://127.0.0.1:1")


def test_a_gateway_that_ends_ends_the_recording_and_what_was_recorded_stays(
    several: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, caught = tmp_path / "t", []

    def listen() -> None:
        try:
            record.main(out=out, url=several.url, key="secret", for_s=60.0)
        except EngineError as error:
            caught.append(str(error))

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    wait_for(lambda: out.exists() and out.stat().st_size > 0, "the recording to begin")
    assert several.messages("hello").is_success
    wait_for(lambda: out.read_bytes().count(b"\n") == 2, "a request in the file")
    for api in several.apis:
        several.stopped.add(api.log.stem)
        api.stop()
    thread.join(30)
    assert caught == [f"{several.url}: the gateway ended the recording; is it being stopped?"]
    assert len(read(out).requests) == 1
    assert "1 requests of 1 conversations; recorded without a word of them" in capsys.readouterr().out
