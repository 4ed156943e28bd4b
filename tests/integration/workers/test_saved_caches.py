"""Saved caches in a whole worker, on the stand-in engine whose files have the price that a test wants."""

import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.conftest import running
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for

pytestmark = pytest.mark.integration
TOOL = {"name": "Read", "description": "Reads a file.", "input_schema": {"type": "object", "properties": {}}}
STANDIN = {"bytes_per_token": 100, "prefill_tokens_per_s": 20_000, "decode_tokens_per_s": 2000}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker with two slots, which frees a slot after two idle seconds."""
    settings = {"idle_slot_s": 2, "lease_renew_s": 0.2}
    options: dict[str, Any] = {"workers": 1, "slots": 2, "context_tokens": 16384, "settings": settings}
    with running(tmp_path_factory.mktemp("saved"), standin=STANDIN, **options) as started:
        yield started


def words(seed: object, count: int) -> str:
    dice = random.Random(str(seed))
    return " ".join(str(dice.randrange(10**6)) for _ in range(count))


class Talk:
    """A main conversation with a base of its own, or with the one that is given."""

    def __init__(self, cluster: Cluster, name: str, base: str = "") -> None:
        self.cluster, self.name = cluster, name
        self.base = base or words(name, 8000)
        self.messages: list[dict[str, Any]] = []
        self.prompt = 0

    def ask(self, say: str = "say 20 words") -> httpx.Response:
        """The next turn, which is not kept."""
        said = {"role": "user", "content": f"{words((self.name, len(self.messages)), 100)} {say}"}
        body = {"model": "m", "max_tokens": 500, "system": self.base, "tools": [TOOL]}
        headers = {"x-claude-code-session-id": self.name}
        answer = self.cluster.http.post(
            "/v1/messages", json=body | {"messages": [*self.messages, said]}, headers=headers
        )
        assert answer.status_code == 200, answer.text
        self.said = said
        return answer

    def turn(self, say: str = "say 20 words") -> float:
        """The next turn. Returns the share of the last prompt that was not prefilled again; 1 for a first turn."""
        answer = self.ask(say)
        self.messages += [self.said, {"role": "assistant", "content": answer.json()["content"]}]
        before, self.prompt = self.prompt, int(answer.headers["x-corral-prompt-tokens"])
        return int(answer.headers["x-corral-cached-tokens"]) / before if before else 1.0

    def side(self, number: int) -> httpx.Response:
        """A title, a summary, a classifier: the same session, other words, no tools."""
        text = words((self.name, "side", number), 200) + " say 3 words"
        body = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": text}]}
        body["system"] = f"You write titles. {number % 3}"
        return self.cluster.http.post("/v1/messages", json=body, headers={"x-claude-code-session-id": self.name})


def info(cluster: Cluster) -> dict[str, Any]:
    """The lease of the one worker."""
    [told] = cluster.status()["workers"]
    return dict(told)


def moved(cluster: Cluster, action: str) -> list[dict[str, Any]]:
    """What the engines were told to save or to restore."""
    lines = [line for name in cluster.workers for line in cluster.engine_requests(name) if line["event"] == "slot"]
    return [line for line in lines if line["action"] == action]


def test_thirty_side_calls_a_turn_cost_two_conversations_in_two_slots_nothing(cluster: Cluster) -> None:
    assert info(cluster)["store"]["off"] == ""
    talks = [Talk(cluster, f"main-{number}") for number in range(2)]
    for talk in talks:
        talk.turn()
    reused: list[float] = []
    with ThreadPoolExecutor(8) as pool:
        for turn in range(3):
            sides = [pool.submit(talk.side, 15 * turn + number) for number in range(15) for talk in talks]
            reused += [talk.turn() for talk in talks]
            assert {side.result().status_code for side in sides} == {200}
            reused += [talk.turn() for talk in talks]
    assert min(reused) >= 0.98, reused


def test_a_second_request_of_a_conversation_takes_a_copy_rather_than_wait_for_a_long_answer(cluster: Cluster) -> None:
    talk, fork = Talk(cluster, "forked"), Talk(cluster, "forked")
    talk.turn()
    fork.messages, fork.prompt = list(talk.messages), talk.prompt
    with ThreadPoolExecutor(1) as pool:
        long: Future[float] = pool.submit(talk.turn, "say 60 words at 20 tokens/s")
        wait_for(lambda: any(slot["busy"] for slot in info(cluster)["slots"]), "the long answer to begin")
        answer = fork.ask()
        assert not long.done()
        assert long.result() >= 0.98
    answered = [line["slot"] for line in cluster.engine_requests("w1") if line["event"] == "request"]
    assert answer.json()["content"]
    assert set(answered[-2:]) == {0, 1}
    assert talk.turn() >= 0.98


def test_a_slot_that_was_idle_is_freed_and_its_conversation_goes_on_from_the_store(cluster: Cluster) -> None:
    talk = Talk(cluster, "idle")
    talk.turn()
    wait_for(lambda: {slot["conversation"] for slot in info(cluster)["slots"]} == {None}, "the slots to be freed")
    others = [Talk(cluster, f"other-{number}") for number in range(2)]
    for other in others:
        other.turn()
    restored = len(moved(cluster, "restore"))
    assert talk.turn() >= 0.98
    assert len(moved(cluster, "restore")) == restored + 1


def test_a_worker_that_is_stopped_saves_what_it_held_and_the_next_one_goes_on(cluster: Cluster) -> None:
    talks = [Talk(cluster, f"kept-{number}") for number in range(2)]
    for talk in talks:
        talk.turn()
    assert cluster.stop_worker("w1") == 0
    cluster.add_worker("w2")
    assert min(talk.turn() for talk in talks) >= 0.98


def test_a_new_conversation_restores_the_base_that_another_made(cluster: Cluster) -> None:
    base = words("base", 4000)
    Talk(cluster, "base-first", base).turn()
    later = Talk(cluster, "base-later", base)
    later.turn()
    assert len(moved(cluster, "save"))
    assert info(cluster)["store"]["failures"] == 0
    answers = cluster.engine_requests(list(cluster.workers)[-1])
    assert [line["cache_n"] for line in answers if line["event"] == "request"][-1] >= 4000


def test_an_engine_that_dies_in_the_middle_of_a_save_costs_what_was_not_saved_and_no_answer(cluster: Cluster) -> None:
    cluster.stop_worker(list(cluster.workers)[-1])
    cluster.add_worker("w3", save_bytes_per_s=1e5)  # more than a second for a conversation
    talk = Talk(cluster, "dies", words("dies", 1000))
    talk.turn()
    before = info(cluster)["engine_pid"]
    wait_for(lambda: begun(cluster), "a save to begin")
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: info(cluster)["engine_pid"] not in (0, before), "another engine")
    cluster.wait_worker("w3", "ready")
    talk.turn()
    cluster.stop_worker("w3")
    assert all(whole(path) for path in (cluster.folder / "data" / "kv").glob("*.kv"))


def begun(cluster: Cluster) -> bool:
    """Whether a conversation is being saved now."""
    lines = [line for line in cluster.engine_requests("w3") if ".c-" in str(line.get("file"))]
    return bool(lines) and lines[-1]["event"] == "slot begins"


def whole(path: Path) -> bool:
    """Whether a file has its description."""
    name = path.name.removesuffix(".kv").rpartition(".")[0]
    return path.with_name(f"{name}.json").exists()
