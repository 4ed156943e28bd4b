"""The command line and environment of each single part."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from infra.cli import api, parts
from infra.config import Settings

pytestmark = pytest.mark.unit


class Became(Exception):
    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        super().__init__(command)
        self.command = command
        self.environ = environ


@pytest.fixture(autouse=True)
def no_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    def become(_file: str, command: Sequence[str], environ: Mapping[str, str]) -> None:
        raise Became(command, environ)

    monkeypatch.setattr(os, "execvpe", become)
    monkeypatch.setenv("CORRAL_REDIS_URL", "redis://127.0.0.1:6379/0")


def test_a_worker_gets_its_name_cards_and_model(tmp_path: Path) -> None:
    with pytest.raises(Became) as became:
        parts.worker(name="attic", gpu="0,1", slots="2", data_dir=tmp_path)
    assert became.value.command == [sys.executable, "-m", "workers.app"]
    got = {key: became.value.environ[f"CORRAL_{key}"] for key in ("WORKER_NAME", "GPU", "SLOTS", "MODEL")}
    assert got == {"WORKER_NAME": "attic", "GPU": "0,1", "SLOTS": "2", "MODEL": "demo"}


def test_a_worker_without_a_name_is_called_after_its_machine_and_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "big_box.example.org")
    with pytest.raises(Became) as became:
        parts.worker(gpu="0,1", data_dir=tmp_path)
    assert became.value.environ["CORRAL_WORKER_NAME"] == "big-box-gpu0-1"


def test_the_api_gets_a_real_port_for_nought() -> None:
    with pytest.raises(Became) as became:
        api.api(port=0)
    assert became.value.command == [sys.executable, "-m", "api.app"]
    assert int(became.value.environ["CORRAL_PORT"]) > 0


def test_flower_gets_its_own_port() -> None:
    with pytest.raises(Became) as became:
        parts.flower(port=0)
    assert became.value.command == [sys.executable, "-m", "infra.flower_app"]
    assert int(became.value.environ["CORRAL_FLOWER_PORT"]) > 0


def test_the_broker_says_the_line_for_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Became):
        parts.broker(port=0, password="p@ss", data_dir=tmp_path)
    assert "export CORRAL_REDIS_URL=redis://:p%40ss@127.0.0.1:" in capsys.readouterr().out


def test_a_part_sees_exactly_the_settings_given_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_SLOTS", "9")
    monkeypatch.setenv("CORRAL_CONFIG", "/elsewhere.toml")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    environ = parts.environment(Settings(slots=2), worker_name="w7")
    assert (environ["CORRAL_SLOTS"], environ["CORRAL_WORKER_NAME"]) == ("2", "w7")
    assert environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert "CORRAL_CONFIG" not in environ
    # A folder of the user's that has an `api` or `workers` of its own must not be run in place of ours.
    assert environ["PYTHONSAFEPATH"] == "1"
