"""Foreign text is shown as it is, whatever it holds."""

from pathlib import Path
from typing import Any

import pytest
import typer

from infra.cli import config_command, console, doctor, loading, status
from infra.cli.gateway import Gateway, Status, Worker
from infra.cli.signals import Signals
from infra.errors import StartError
from tests.unit.infra.cli.conftest import FixedApi

pytestmark = pytest.mark.unit

TRICKY = ("[/x]", "[red]a", "[/]", ":warning:", "a\\", "[link=x]b")


@pytest.fixture(params=[True, False], ids=["terminal", "file"])
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(console.out, "_force_terminal", request.param)
    monkeypatch.setattr(console.err, "_force_terminal", request.param)
    monkeypatch.setattr(console.out, "is_interactive", request.param)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "400")
    return bool(request.param)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("name", TRICKY)
def test_status_shows_every_name_as_it_is(name: str, fixed_api: FixedApi, capsys: pytest.CaptureFixture[str]) -> None:
    worker: dict[str, Any] = fixed_api.answers["/v1/status"][1]["workers"][0]
    worker |= {"name": f"w{name}", "model": f"m{name}", "gpu": f"g{name}", "reason": f"r{name}", "state": f"s{name}"}
    worker["slots"][0] |= {"agent": f"a{name}", "conversation": f"c{name}"}
    status.status(url=fixed_api.url)
    text = capsys.readouterr().out
    for letter in "wmgrsa":
        assert f"{letter}{name}" in text
    assert f"c{name}"[: status.CONVERSATION_LETTERS] in text


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("value", TRICKY)
def test_config_shows_every_value_as_it_is(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_ENGINE_ARGS", value)
    config_command.config()
    assert value in capsys.readouterr().out


def test_a_path_is_broken_and_never_cut_where_it_is_what_one_looks_for(
    tmp_path: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder = tmp_path / ("x" * 100)
    monkeypatch.setenv("CORRAL_DATA_DIR", str(folder))
    config_command.config()
    with pytest.raises(typer.Exit):
        doctor.doctor(data_dir=folder)
    text = capsys.readouterr().out
    assert "\u2026" not in text
    if terminal:
        assert max(len(line) for line in text.splitlines()) <= 80


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("text", TRICKY)
def test_a_sentence_is_said_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    console.say(text)
    console.prose(text, style="yellow")
    console.warn(text)
    console.fail(text)
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [text, text]
    assert captured.err.splitlines() == [f"warning: {text}", f"error: {text}"]


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("reason", TRICKY)
def test_the_wait_shows_a_workers_reason_as_it_is(
    reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = Status(workers=(Worker(name="w1", state="failing", reason=reason),))
    monkeypatch.setattr(loading, "_status", lambda _gateway: failing)
    monkeypatch.setattr(loading, "LINE_EVERY_S", 0.0)
    monkeypatch.setattr(loading, "POLL_S", 0.0)
    left = iter([False, True])

    def check() -> None:
        if next(left):
            raise StartError("w1", "ended")

    with Gateway("http://127.0.0.1:9", "k") as client, Signals(lambda: None) as signals, pytest.raises(StartError):
        loading.wait_until_ready(client, ["w1"], check, signals, 60)
    assert f"w1: failing ({reason})" in capsys.readouterr().out
