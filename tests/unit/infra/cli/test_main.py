"""The command line as a whole: help, version, and errors in one line."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from infra.cli import entry, main
from tests.doubles.processes import REPOSITORY

pytestmark = pytest.mark.unit

COMMANDS = ("up", "claude", "status", "doctor", "config", "broker", "worker", "api", "flower")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["corral", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_text(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, command, "--help") == 0
    told = capsys.readouterr().out
    assert f"Usage: corral {command}" in told
    assert "[[" not in told


def test_the_help_names_every_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--help") == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)


def test_the_version_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("corral 0.")


def test_a_wrong_setting_is_one_line_and_code_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_SLOTTS", "3")
    assert run(monkeypatch, "config") == 2
    shown = capsys.readouterr()
    assert shown.err == "error: CORRAL_SLOTTS: unknown setting `slotts`; did you mean `slots`?\n"
    assert shown.out == ""


def test_a_part_that_cannot_start_is_one_line_and_code_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "up", "--model", str(tmp_path / "none.gguf"), "--data-dir", str(tmp_path)) == 1
    assert capsys.readouterr().err.startswith("error: model: ")


def test_an_error_of_the_system_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device", "/data/x")

    monkeypatch.setattr("infra.cli.plan.workers", full)
    assert run(monkeypatch, "up") == 1
    assert capsys.readouterr().err == "error: No space left on device: /data/x\n"


def test_a_settings_file_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_CONFIG", "")  # so that what the option sets is undone after the test
    assert run(monkeypatch, "--config", "/no/such.toml", "config") == 2
    assert "/no/such.toml: no such file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["worker", "api", "flower"])
def test_a_single_part_needs_to_know_the_broker(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, command) == 2
    assert "CORRAL_REDIS_URL: not set" in capsys.readouterr().err


def test_a_broker_open_to_others_needs_a_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "broker", "--host", "0.0.0.0") == 2
    assert "CORRAL_BROKER_PASSWORD" in capsys.readouterr().err


LOADED_AT_CTRL_C = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "infra.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
import infra.cli.entry
"""


def test_ctrl_c_while_the_command_is_loaded_shows_no_stack_trace() -> None:
    command = [sys.executable, "-c", LOADED_AT_CTRL_C]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_what_is_installed_calls_that() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"corral": "infra.cli.entry:main"}
    assert entry.main is main.main
