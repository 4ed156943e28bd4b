"""An engine whose memory grows is restarted as planned, and one whose card is full says so."""

from pathlib import Path
from typing import Any

import pytest

from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for
from tests.integration.workers.clients import Asking, engine_pid, hung_up, text_of, words
from tests.integration.workers.test_saved_caches import Talk
from tests.integration.workers.test_watchdog import ended, is_ready, one_slot, worker_of

pytestmark = pytest.mark.integration
CEILING = {"engine_memory_ceiling_bytes": 100_000_000, "drain_s": 1, "early_commit_s": 600}
STANDIN = {"bytes_per_token": 100, "prefill_tokens_per_s": 20_000}


def restarts(cluster: Cluster) -> list[str]:
    """Why the engine of w1 was restarted on purpose, each time."""
    lines = cluster.worker_log_lines("w1")
    return [line["reason"] for line in lines if line.get("event") == "engine_restart_began"]


def attempts(cluster: Cluster, agent: str) -> int:
    line = cluster.wait_log(lambda line: line.get("event") == "request" and line.get("agent") == agent)
    return int(line["attempt"])


def test_an_engine_that_grows_is_restarted_and_nobody_s_request_fails(tmp_path: Path, broker: Broker) -> None:
    """There is no other worker: what comes meanwhile waits, what was cut goes on, and what was saved is restored."""
    options: dict[str, Any] = {"workers": 1, "slots": 2, "context_tokens": 16384, "standin": STANDIN}
    with Cluster(tmp_path, broker.url, settings=CEILING, **options) as cluster, Asking(cluster) as asking:
        talk = Talk(cluster, "talk")
        talk.turn()
        first = engine_pid(cluster)
        cut = asking.stream("leaking 200 MB say 90 words at 15 tokens/s", "cut")
        wait_for(lambda: worker_of(cluster)["state"] == "restarting", "the restart", 30)
        reason = worker_of(cluster)["reason"]
        waits = asking.ask("say 3 words", "waits")
        assert "its memory grew from" in reason
        assert "engine_memory_ceiling_bytes" in reason
        assert text_of(waits.result()) == words(3)
        cut.answer.result()
        assert (cut.text, cut.last) == (words(90), "message_stop")
        assert is_ready(cluster)
        assert engine_pid(cluster) != first
        assert (restarts(cluster), ended(cluster)) == ([reason], [])
        assert attempts(cluster, "cut") == 2
        assert talk.turn() >= 0.9  # of its prompt before


def test_a_card_that_is_full_is_told_with_what_to_do(tmp_path: Path, broker: Broker) -> None:
    with one_slot(tmp_path, broker) as cluster:
        with hung_up(cluster, "exhaust the card after 3 tokens", "cut", after_first_text=True):
            wait_for(lambda: "memory of the card is full" in worker_of(cluster)["reason"], "status to say so", 30)
        (reason,) = ended(cluster)[:1]
        assert "CUDA error: out of memory" in reason
        assert "lower --slots or --context" in reason
        assert "-ctk q8_0" in reason
