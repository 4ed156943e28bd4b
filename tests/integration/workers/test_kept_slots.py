"""Slots that are kept: for urgent levels while they come, and for an agent that is about to be back.

A kept slot is a ticket that waits in the worker; whoever may have the slot takes it at once.
"""

import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for
from tests.integration.workers.clients import (
    Asking,
    Stream,
    engine_pid,
    headers,
    line,
    running,
    text_of,
    tickets,
    wait_line,
    wait_running,
    words,
)

pytestmark = pytest.mark.integration

TOOL = {"name": "Bash", "description": "runs", "input_schema": {"type": "object", "properties": {}}}


def holds(cluster: Cluster) -> bool:
    return bool(cluster.redis.exists("corral:holding:w1"))


def background(cluster: Cluster, asking: Asking, text: str) -> list[Stream]:
    """Five of level 5 after one that is urgent: three run, a slot is kept, two wait."""
    assert text_of(asking.ask("say 3 words", "urgent", level=0).result()) == words(3)
    streams = [asking.stream(text, f"background-{number}") for number in range(5)]
    wait_for(lambda: (line(cluster), running(cluster), holds(cluster)) == (2, 3, True), "a slot that is kept")
    return streams


def four_slots(folder: Path, broker: Broker) -> Cluster:
    return Cluster(folder, broker.url, workers=1, slots=4)


def test_background_work_leaves_a_slot_that_the_next_urgent_request_takes(tmp_path: Path, broker: Broker) -> None:
    with four_slots(tmp_path, broker) as cluster, Asking(cluster) as asking:
        streams = background(cluster, asking, "say 40 words at 8 tokens/s")
        wait_for(lambda: sum(tickets(cluster)) == 1, "the other's ticket in the line, and one in hand")
        urgent = asking.ask("say 3 words", "urgent", level=1).result()
        assert text_of(urgent) == words(3)
        assert not any(stream.answer.done() for stream in streams)
        assert (line(cluster), running(cluster)) == (2, 3)
        for stream in streams:  # those that waited go on as the others end
            assert stream.answer.result().text == words(40)
        wait_running(cluster, 0)
        assert "tickets_replaced" not in cluster.api_log()


def test_a_worker_that_is_stopped_does_not_wait_for_a_kept_slot(tmp_path: Path, broker: Broker) -> None:
    with four_slots(tmp_path, broker) as cluster, Asking(cluster) as asking:
        streams = background(cluster, asking, "say 20 words at 8 tokens/s")
        cluster.add_worker("w2")
        assert cluster.stop_worker("w1") == 0
        assert [stream.answer.result().text for stream in streams] == [words(20)] * 5


def test_a_lost_engine_ends_the_wait_and_all_are_answered_by_the_next(tmp_path: Path, broker: Broker) -> None:
    with four_slots(tmp_path, broker) as cluster, Asking(cluster) as asking:
        streams = background(cluster, asking, "say 30 words at 8 tokens/s")
        os.kill(engine_pid(cluster), signal.SIGKILL)
        ends = [stream.answer.result() for stream in streams]
        assert [(stream.text, stream.last) for stream in ends] == [(words(30), "message_stop")] * 5


def test_a_slot_waits_for_the_agent_that_runs_a_tool(tmp_path: Path, broker: Broker) -> None:
    settings = {"return_hold_s": 30}
    with Cluster(tmp_path, broker.url, workers=1, slots=2, settings=settings) as cluster, Asking(cluster) as asking:
        first = asking.stream("say 80 words at 10 tokens/s", "many")
        assert first.first_text.wait(30)
        calls = asking.pool.submit(single, cluster, 'say 20 words at 10 tokens/s then call Bash {"a": 1}')
        wait_running(cluster, 2)
        more = [asking.stream(f"say {count} words", "many") for count in (3, 5)]
        wait_line(cluster, 2)
        assert calls.result().json()["stop_reason"] == "tool_use"
        wait_for(lambda: holds(cluster), "a slot that is kept")
        assert (line(cluster), running(cluster)) == (2, 1)
        assert text_of(single(cluster, "say 4 words")) == words(4)
        # It is back and has ended its turn: nobody is awaited any more.
        assert [stream.answer.result().text for stream in more] == [words(3), words(5)]
        first.answer.result()


def single(cluster: Cluster, text: str) -> httpx.Response:
    body = {"tools": [TOOL], "model": "any", "max_tokens": 4096, "messages": [{"role": "user", "content": text}]}
    return httpx.post(f"{cluster.url}/v1/messages", json=body, headers=headers("single"), timeout=60, trust_env=False)
