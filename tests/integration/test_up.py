"""`corral up` and `corral broker` as processes: a real broker and real signals, with parts that only pretend.

The whole with real parts is in the acceptance tier.
"""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.doubles import pretended
from tests.doubles.corral import Corral, address, said, until_said
from tests.doubles.processes import REPOSITORY
from tests.doubles.services import wait_for

pytestmark = pytest.mark.integration


@pytest.fixture
def corral(tmp_path: Path) -> Iterator[Corral]:
    state = tmp_path / "state"
    state.mkdir()
    pretended_first = f"{Path(pretended.__file__).parent}:{REPOSITORY}"
    with Corral(tmp_path, {"PRETENDED_FOLDER": str(state), "PYTHONPATH": pretended_first}) as running:
        yield running


def test_everything_starts_and_stops_in_order_and_leaves_nothing(corral: Corral) -> None:
    # The folder it is started from has an `api` of its own, as many projects do; ours must run all the same.
    (corral.folder / "api").mkdir()
    (corral.folder / "api" / "app.py").write_text("raise SystemExit('error: the wrong api')")
    child = corral.serving("--workers", "2")
    assert address(child).startswith("http://127.0.0.1:")
    child.send(signal.SIGTERM)
    assert child.wait() == 0
    lines = said(child).splitlines()
    stops = [line.partition(" (")[0] for line in lines if line.startswith("Stopping ")]
    assert stops == ["Stopping API", "Stopping worker w1 and worker w2", "Stopping broker"]
    assert lines[-1] == "Stopped."
    assert "was killed" not in said(child)
    assert corral.left() == []
    assert "\x1b" not in said(child)


def test_a_part_that_cannot_start_is_one_sentence_and_everything_is_taken_down(corral: Corral) -> None:
    child = corral.up("--workers", "2", PRETENDED_FAILS="w2")
    assert child.wait(60) == 1
    assert said(child).splitlines()[-1] == "error: worker w2: the model cannot be loaded: out of memory"
    assert "Traceback" not in said(child)
    assert corral.left() == []


def test_no_child_survives_a_killed_up(corral: Corral) -> None:
    child = corral.serving("--workers", "2")
    assert len(corral.left()) == 5
    child.send(signal.SIGKILL)
    child.wait()
    wait_for(lambda: not corral.left(), "the children to die with their parent")
    again = corral.serving()
    assert again.stop() == 0


def test_a_second_up_on_the_same_folder_is_refused(corral: Corral) -> None:
    first = corral.serving()
    second = corral.up()
    assert second.wait(60) == 1
    assert f"is in use by pid {first.pid}; stop that `corral up`, or give another --data-dir" in said(second)
    assert first.alive
    assert first.stop() == 0


def test_a_worker_that_dies_is_started_again(corral: Corral) -> None:
    child = corral.serving()
    (worker,) = corral.running("workers.app")
    worker.kill()
    until_said(child, "worker w1: started again")
    assert len(corral.running("workers.app")) == 1
    assert child.stop() == 0


def test_a_broker_that_dies_is_started_again_with_its_data(corral: Corral) -> None:
    child = corral.serving()
    url = (corral.data / "broker" / "url").read_text().strip()
    with redis.Redis.from_url(url) as client:
        client.set("kept", 1)
        (broker,) = corral.running("valkey")
        broker.kill()
        until_said(child, "broker: started again")
        wait_for(lambda: answers(client), "the broker to answer")
        assert client.get("kept") == b"1"
    assert child.stop() == 0


def test_an_only_api_that_dies_is_started_again(corral: Corral) -> None:
    child = corral.serving()
    (api,) = corral.running("api.app")
    api.kill()
    until_said(child, "API: started again")
    assert "API: was killed by SIGKILL; its log is " in said(child)
    assert len(corral.running("api.app")) == 1
    assert child.stop() == 0
    assert corral.left() == []


def test_one_of_several_apis_that_dies_is_started_again(corral: Corral) -> None:
    child = corral.serving("--api-workers", "2")
    first, second = corral.running("api.app")
    first.kill()
    until_said(child, ": started again")
    assert "API 1: was killed by SIGKILL" in said(child) or "API 2: was killed by SIGKILL" in said(child)
    assert second.is_running()
    assert len(corral.running("api.app")) == 2
    assert child.stop() == 0
    assert "Stopping API 1 and API 2" in said(child)
    assert corral.left() == []


def test_the_second_signal_stops_at_once(corral: Corral) -> None:
    child = corral.serving(PRETENDED_DRAIN_S="600")
    child.send(signal.SIGINT)
    until_said(child, "Stopping API (up to 55 s)")
    child.send(signal.SIGINT)
    assert child.wait(10) == 130
    assert "did not end by itself" not in said(child), "nobody let it"
    assert corral.left() == []


def test_stopping_while_the_model_loads_leaves_nothing(corral: Corral) -> None:
    child = corral.up("--workers", "2", CORRAL_WORKER_NAME="a", PRETENDED_FAILS="")
    until_said(child, "Starting Corral")
    child.send(signal.SIGTERM)
    assert child.wait() == 0
    assert corral.left() == []


def test_a_broker_of_ones_own_is_used_and_left_alone(corral: Corral, broker_url: str) -> None:
    child = corral.serving(CORRAL_REDIS_URL=broker_url)
    assert len(corral.left()) == 3
    assert corral.running("valkey") == []
    assert child.stop() == 0
    with redis.Redis.from_url(broker_url) as client:
        assert client.ping()


def test_the_broker_alone_asks_for_its_password_and_holds_its_folder(corral: Corral) -> None:
    arguments = ("broker", "--port", "0", "--data-dir", str(corral.data))
    first = corral.run(*arguments, CORRAL_BROKER_PASSWORD="se cret")
    until_said(first, "export CORRAL_REDIS_URL=")
    url = re.findall(r"CORRAL_REDIS_URL=(\S+)", said(first))[0]
    with redis.Redis.from_url(url, decode_responses=True) as client:
        wait_for(lambda: answers(client), "the broker to answer")
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    with redis.Redis.from_url(url.replace("se%20cret", "wrong")) as stranger, pytest.raises(redis.RedisError):
        stranger.ping()
    second = corral.run(*arguments)
    assert second.wait() == 1
    assert "is in use by pid" in said(second)
    assert first.stop() == 0


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
