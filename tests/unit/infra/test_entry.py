"""What every part does around its own work, and that there is one way to do it."""

import ast
from pathlib import Path

import pytest

import infra
from infra import entry
from infra.config import Settings
from infra.errors import BrokerDown, StartError
from infra.observability import logs

pytestmark = pytest.mark.unit

ROOT = Path(str(infra.__file__)).parents[1]
PARTS = ["api/app.py", "workers/app.py", "infra/flower_app.py"]


@pytest.fixture(autouse=True)
def _logging_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "configure", lambda _settings, _name: None)


def test_a_part_that_served_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_PORT", "1")
    served: list[Settings] = []
    assert entry.run("x", served.append) == 0
    assert served[0].port == 1


def test_a_broker_that_does_not_answer_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_REDIS_URL", "redis://me:topsecret@10.9.8.7:6379/0")

    def serve(_: Settings) -> None:
        raise BrokerDown("the broker does not answer")

    assert entry.run("x", serve) == 1
    told = capsys.readouterr().err
    assert "redis://10.9.8.7:6379/0" in told
    assert "topsecret" not in told


@pytest.mark.parametrize("error", [StartError("engine", "there is none"), StartError("flower", "the port is taken")])
def test_a_part_that_cannot_start_says_why_in_its_last_line(
    error: StartError, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(_: Settings) -> None:
        raise error

    assert entry.run("x", serve) == 1
    assert capsys.readouterr().err == f"error: {error}\n"


def test_a_wrong_setting_is_said_the_same_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_PORT", "many")
    assert entry.run("x", lambda _: None) == 1
    assert capsys.readouterr().err.startswith("error: CORRAL_PORT: `port`: ")


@pytest.mark.parametrize("path", PARTS)
def test_no_part_catches_and_prints_for_itself(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    (main,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"]
    assert not [node for node in ast.walk(main) if isinstance(node, ast.Try)]
    assert "entry.run(" in ast.unparse(main)
