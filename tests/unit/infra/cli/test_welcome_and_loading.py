"""What is said while the model loads and once it serves."""

from pathlib import Path

import pytest

from infra.cli import loading, options, welcome
from infra.cli.gateway import Gateway, Slot, Status, Worker
from infra.cli.signals import Signals
from infra.config import Settings
from infra.errors import StartError
from tests.unit.infra.cli.conftest import FixedApi

pytestmark = pytest.mark.unit

READY = Worker(name="w1", state="ready", model="anthropic-m", context_tokens=65536, slots=(Slot(slot=0),))


def test_what_each_worker_does_is_one_line() -> None:
    failing = Worker(name="w2", state="failing", reason="out of memory")
    line = loading.describe(Status(workers=(READY, failing)), ["w1", "w2", "w3"])
    assert line == "w1: ready, w2: failing (out of memory), w3: starting"
    assert loading.describe(None, ["w1"]) == "Waiting for the API"


def test_only_our_own_workers_are_waited_for() -> None:
    others = Worker(name="elsewhere", state="loading")
    assert loading.all_ready(Status(workers=(READY, others)), ["w1"])
    assert not loading.all_ready(Status(workers=(READY,)), ["w1", "w2"])


def test_waiting_returns_the_status_or_says_what_is_missing(fixed_api: FixedApi) -> None:
    with Gateway(fixed_api.url, "k") as client, Signals(lambda: None) as signals:
        status = loading.wait_until_ready(client, ["w1"], lambda: None, signals, 60)
        assert status.workers[0].name == "w1"
        with pytest.raises(StartError, match="not ready after 0 s: w9: starting"):
            loading.wait_until_ready(client, ["w9"], lambda: None, signals, 0)


def test_the_welcome_names_addresses_and_the_lines_to_paste(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(model="/m.gguf", api_keys="me:topsecret", port=8123, flower_port=5123)
    welcome.tell(settings, Status(workers=(READY,)), options.load_with(), flower=True)
    text = capsys.readouterr().out
    assert "export ANTHROPIC_BASE_URL=http://127.0.0.1:8123" in text
    assert "export ANTHROPIC_AUTH_TOKEN=YOUR_KEY" in text
    assert "corral claude --url http://127.0.0.1:8123" in text
    assert "http://127.0.0.1:5123" in text
    assert "http://127.0.0.1:8123/ui" in text
    assert "corral worker --name more" in text
    assert "topsecret" not in text
    assert "demo model" not in text


def test_a_further_worker_is_started_as_these_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only with what its own corral.toml would not tell it, and never with a key."""
    file = tmp_path / "corral.toml"
    file.write_text("slots = 8\nidle_slot_s = 60\n")
    for name, value in {"CONFIG": str(file), "STORE_DIR": "/a b", "API_KEYS": "me:topsecret", "PORT": "1"}.items():
        monkeypatch.setenv(f"CORRAL_{name}", value)
    up = {"model": "/m.gguf", "context_tokens": "auto", "data_dir": tmp_path / "its data", "engine_args": "-ngl 99"}
    line = welcome.further_worker(options.load_with(**up).settings, options.load_with())
    url = f"CORRAL_REDIS_URL=$(cat '{tmp_path}/its data/broker/url')"
    command = f"corral --config {file} worker --name more --model /m.gguf --context auto --engine-args '-ngl 99'"
    assert line == f"{url} CORRAL_STORE_DIR='/a b' {command} --data-dir '{tmp_path}/its data'"


def test_a_further_worker_needs_no_more_than_the_broker_where_nothing_was_given() -> None:
    settings = options.load_with().settings
    url = settings.data_dir / "broker" / "url"
    assert welcome.further_worker(settings, options.load_with()) == (
        f"CORRAL_REDIS_URL=$(cat {url}) corral worker --name more"
    )


def test_all_that_a_line_may_hand_on_is_a_setting() -> None:
    assert set(welcome.WORKER_VARIABLES + welcome.WORKER_OPTIONS) <= set(Settings.model_fields)


def test_the_demo_model_is_called_what_it_is() -> None:
    text = " ".join(welcome.notes(Settings(model="demo"), Status(workers=(READY,))))
    assert "proves that the path works" in text
    assert "--model /path/to/model.gguf" in text


def test_a_window_too_small_for_the_client_is_said_at_once() -> None:
    small = READY.model_copy(update={"context_tokens": 32768})
    assert "--context" in " ".join(welcome.notes(Settings(model="/m"), Status(workers=(READY, small))))
    assert welcome.notes(Settings(model="/m"), Status(workers=(READY,))) == []
