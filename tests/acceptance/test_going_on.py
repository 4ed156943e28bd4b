"""An answer that loses its engine or worker goes on from where it was, and its client sees one answer."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.conftest import WINDOW_TOKENS, running
from tests.acceptance.wire import Event, ask, body, events_of, in_order, text_of, user
from tests.doubles import scripted_model as scripts
from tests.doubles.cluster import Cluster
from tests.doubles.scripted_model import Script

pytestmark = pytest.mark.acceptance

LONG = scripts.long_text(1500)
Kill = Callable[[Cluster, str], None]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory, model_path: Callable[[Script], Path]) -> Iterator[Cluster]:
    """Two workers on the real engine that answer with 1,500 words."""
    folder = tmp_path_factory.mktemp("going-on") / "0"
    options: dict[str, Any] = {"engine": "embedded", "context_tokens": WINDOW_TOKENS, "workers": 2, "slots": 2}
    with running(folder, model=model_path(LONG), **options) as cluster:
        yield cluster


def kill_worker(cluster: Cluster, name: str) -> None:
    cluster.kill_worker(name)


def kill_engine(cluster: Cluster, name: str) -> None:
    os.kill(engine_pid(cluster, name), signal.SIGKILL)


def restart(cluster: Cluster) -> None:
    """Both workers are ready again."""
    for name in tuple(cluster.stopped):
        cluster.start_worker(name)
    cluster.wait_ready(2)


def engine_pid(cluster: Cluster, name: str) -> int:
    workers = cluster.status()["workers"]
    return int(next(worker["engine_pid"] for worker in workers if worker["name"] == name))


def cut(cluster: Cluster, kill: Kill, after: int, **fields: Any) -> tuple[list[Event], httpx.Headers]:
    """A streamed answer whose worker or engine is killed once `after` events of content have come."""
    request = body(user("go"), stream=True, max_tokens=20_000, **fields)
    lines: list[str] = []
    with cluster.http.stream("POST", "/v1/messages", json=request, timeout=120) as answer:
        for line in answer.iter_lines():
            lines.append(line)
            if after and line == "event: content_block_delta":
                after -= 1
                if not after:
                    kill(cluster, answer.headers["x-corral-worker"])
    events = events_of(lines)
    in_order(events)
    return events, answer.headers


@pytest.mark.parametrize("kill", [kill_worker, kill_engine])
@pytest.mark.parametrize("after", [1, 7, 30])
def test_the_client_sees_one_whole_answer(long: Cluster, kill: Kill, after: int) -> None:
    whole = ask(long, user("go"), max_tokens=20_000)
    events, headers = cut(long, kill, after)
    restart(long)
    assert text_of(events) == text_of(whole)
    assert events[-1]["type"] == "message_stop", headers
    assert events[-2]["usage"]["output_tokens"] == pytest.approx(whole["usage"]["output_tokens"], abs=3)
    assert events[-2]["usage"]["input_tokens"] + events[-2]["usage"]["cache_read_input_tokens"] == sum(
        whole["usage"][name] for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
