"""`corral drain`: what is said of a drain, and when it is over."""

from typing import Any

import pytest

from infra.cli import drain
from infra.cli.gateway import Gateway
from infra.errors import ConfigError, CorralError, NotFound
from tests.unit.infra.cli.conftest import FixedApi

pytestmark = pytest.mark.unit
PATH = "/v1/workers/w1/drain"


def worker(name: str, state: str, *, running: int = 0, queued: int = 0, model: str = "m") -> dict[str, Any]:
    return {"name": name, "state": state, "model": model, "running": running, "queued": [queued]}


def follow(api: FixedApi, *workers: dict[str, Any]) -> None:
    api.answers["/v1/status"] = (200, {"workers": workers})
    with Gateway(api.url, "key") as client:
        drain._follow(client, "w1", 0)


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ([worker("w2", "ready")], "w1 has left; nothing runs there"),
        ([worker("w1", "drained"), worker("w2", "ready")], "w1 is drained. Stop it, or take it back with"),
        ([worker("w1", "drained", queued=1)], "w1 is drained; 1 request waiting for another worker. Stop it"),
        ([worker("w1", "drained", queued=2), worker("w2", "ready", model="n")], "2 requests waiting for another"),
    ],
)
def test_a_drain_is_over_when_nothing_runs_and_nothing_waits_that_could_move(
    fixed_api: FixedApi, capsys: pytest.CaptureFixture[str], workers: list[dict[str, Any]], words: str
) -> None:
    follow(fixed_api, *workers)
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (worker("w1", "draining", running=2, queued=1), "2 answers running, 1 request waiting"),
        (worker("w1", "draining"), "saving caches"),
        (worker("w1", "drained", queued=3), "3 requests waiting"),
        (worker("w1", "ready"), "is told"),
    ],
)
def test_a_drain_that_takes_too_long_says_what_it_waits_for(
    fixed_api: FixedApi, first: dict[str, Any], words: str
) -> None:
    with pytest.raises(CorralError) as late:
        follow(fixed_api, first, worker("w2", "ready"))
    assert late.value.message == f"w1 is not empty after 0 s: {words}; it goes on draining"


def test_the_last_worker_of_a_model_is_told_apart(fixed_api: FixedApi, capsys: pytest.CaptureFixture[str]) -> None:
    follow(fixed_api, worker("w1", "drained"), worker("w2", "drained"), worker("w3", "ready", model="n"))
    assert "warning: no other worker serves m: new requests are refused" in capsys.readouterr().err


def test_an_unknown_worker_is_answered_with_those_there_are(fixed_api: FixedApi) -> None:
    words = "worker: w1 is not known; there are w2, w3"
    fixed_api.answers[PATH] = (404, {"error": {"message": words}})
    with pytest.raises(NotFound, match=words):
        drain.drain("w1", url=fixed_api.url)
    with pytest.raises(NotFound, match=words):
        drain.undrain("w1", url=fixed_api.url)


def test_a_name_is_needed() -> None:
    with pytest.raises(ConfigError, match="WORKER is empty"):
        drain.undrain(" ")


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ([worker("w1", "ready")], "w1 takes work again"),
        ([worker("w1", "drained")], "w1 was told to take work again; it is still drained"),
        ([worker("w2", "ready")], "w1 is not there; it will take work when it is"),
    ],
)
def test_what_becomes_of_a_worker_that_is_taken_back_is_told(
    fixed_api: FixedApi,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    workers: list[dict[str, Any]],
    words: str,
) -> None:
    monkeypatch.setattr(drain, "TAKE_BACK_S", 0.0)
    fixed_api.answers[PATH] = (200, {})
    fixed_api.answers["/v1/status"] = (200, {"workers": workers})
    drain.undrain("w1", url=fixed_api.url)
    assert capsys.readouterr().out == f"{words}\n"
