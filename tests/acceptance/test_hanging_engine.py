"""A real engine that is stopped in the middle of an answer is found out, and its answer goes on."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.conftest import WINDOW_TOKENS, running
from tests.acceptance.test_going_on import cut, engine_pid
from tests.acceptance.wire import ask, text_of, user
from tests.doubles import scripted_model as scripts
from tests.doubles.cluster import Cluster
from tests.doubles.scripted_model import Script

pytestmark = pytest.mark.acceptance


def stop_engine(cluster: Cluster, name: str) -> None:
    os.kill(engine_pid(cluster, name), signal.SIGSTOP)


def test_an_answer_of_a_real_engine_that_hangs_goes_on_as_if_nothing_had_been(
    tmp_path: Path, model_path: Callable[[Script], Path]
) -> None:
    model = model_path(scripts.long_text(1500))
    settings = {"hang_s": 2}
    with running(
        tmp_path / "0", model=model, engine="embedded", context_tokens=WINDOW_TOKENS, slots=1, settings=settings
    ) as cluster:
        whole = text_of(ask(cluster, user("go"), max_tokens=20_000))
        events, _ = cut(cluster, stop_engine, 7)
        assert text_of(events) == whole
        assert events[-1]["type"] == "message_stop"
        assert "made no progress" in cluster.worker_log("w1")
