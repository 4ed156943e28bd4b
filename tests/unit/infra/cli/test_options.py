"""Options over settings."""

from pathlib import Path

import pytest

from infra.cli import options
from infra.errors import ConfigError

pytestmark = pytest.mark.unit


def test_an_option_overrides_the_variable_and_the_variable_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corral.toml").write_text("slots = 2\nport = 8001\ndrain_s = 7\n")
    monkeypatch.setenv("CORRAL_PORT", "8002")
    monkeypatch.setenv("CORRAL_SLOTS", "3")
    loaded = options.load_with(slots=5, port=None)
    assert (loaded.settings.slots, loaded.settings.port, loaded.settings.drain_s) == (5, 8002, 7)
    assert loaded.sources["slots"] == "--slots"
    assert loaded.sources["port"] == "CORRAL_PORT"
    assert loaded.sources["drain_s"] == "corral.toml"
    assert loaded.sources["host"] == "default"


def test_a_wrong_option_is_named_as_it_was_written() -> None:
    with pytest.raises(ConfigError, match=r"^--gpu x: must be card numbers, as 0 or 0,1, or none$"):
        options.load_with(gpu="x")
    with pytest.raises(ConfigError, match=r"^--context 0: must be a number of at least 1, or auto$"):
        options.load_with(context_tokens=0)
    with pytest.raises(ConfigError, match=r"^--slots many: must be a number from 1 to 256, or auto$"):
        options.load_with(slots="many")


def test_a_wrong_variable_keeps_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_PORT", "99999")
    with pytest.raises(ConfigError, match=r"^CORRAL_PORT: `port`"):
        options.load_with(slots=2)


def test_the_password_of_the_broker_command_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_BROKER_PASSWORD", "x")
    assert options.load_with().settings.redis_url == ""
