"""`corral config` shows everything but secrets."""

import json

import pytest

from infra.cli import config_command
from infra.config import Settings

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("user", ["me:topsecret", ":topsecret", "topsecret"])
def test_secrets_never_show(user: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CORRAL_API_KEYS", "me:topsecret")
    monkeypatch.setenv("CORRAL_FLOWER_PASSWORD", "me:topsecret")
    monkeypatch.setenv("CORRAL_REDIS_URL", "redis://:topsecret@broker:6379/0")
    monkeypatch.setenv("CORRAL_TRACE_ENDPOINT", f"http://{user}@collector:4318")
    for as_json in (False, True):
        config_command.config(as_json=as_json)
    text = capsys.readouterr().out
    assert "topsecret" not in text
    assert "redis://:********@broker:6379/0" in text


def test_every_setting_has_a_value_and_a_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORRAL_SLOTS", "7")
    config_command.config(as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == set(Settings.model_fields)
    assert shown["slots"] == {"value": 7, "source": "CORRAL_SLOTS"}
    assert shown["port"] == {"value": 8000, "source": "default"}
    assert shown["api_keys"]["value"] == ""
