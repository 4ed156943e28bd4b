"""The checks of `corral doctor`."""

from pathlib import Path

import pytest
import redis
import typer

from infra import machine
from infra.cli import doctor, engine, findings
from infra.cli.engine import Engine
from infra.cli.findings import Level
from infra.config import Settings

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def no_tools(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    printed: dict[str, str] = {}
    monkeypatch.setattr(machine, "output_of", lambda tool, *_arguments, **_options: printed.get(tool, ""))
    return printed


def test_a_silent_broker_fails_and_its_password_is_hidden() -> None:
    found = findings.broker(Settings(redis_url="redis://:topsecret@127.0.0.1:1/0"))
    assert found.level is Level.FAIL
    assert "topsecret" not in found.text
    assert "CORRAL_REDIS_URL" in found.remedy


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        ({"redis_version": "6.2.1"}, Level.FAIL, "redis 6.2.1"),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "9.1.0"}, Level.OK, "valkey 9.1.0"),
    ],
)
def test_the_brokers_version_is_judged(
    facts: dict[str, str], level: Level, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis.Redis, "info", lambda _client, _section: facts)
    found = findings.broker(Settings(redis_url="redis://127.0.0.1:1/0"))
    assert (found.level, words in found.text) == (level, True)


def test_an_idle_card_is_a_warning_with_the_remedy(no_tools: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    no_tools["nvidia-smi"] = "GPU 0: NVIDIA H200 (UUID: GPU-1)\n"
    monkeypatch.setattr(engine, "find", lambda _settings: Engine("embedded"))
    found = findings.graphics(Settings())
    assert (found.level, "H200" in found.text) == (Level.WARN, True)
    assert "llama-server" in found.remedy


@pytest.mark.parametrize(
    ("settings", "level", "words"),
    [
        ({}, Level.OK, "none; all share alike"),
        ({"api_keys": "me:s", "key_weights": "me=2", "agent_weights": "a=3"}, Level.OK, "2 set"),
        ({"api_keys": "me:s", "key_weights": "me=2,you=3"}, Level.WARN, "key_weights names `you`"),
        ({"key_weights": "you=3"}, Level.WARN, "CORRAL_API_KEYS has no such key"),
        ({"api_keys": "me", "key_weights": "me=3"}, Level.FAIL, "CORRAL_API_KEYS: entry 1"),
    ],
)
def test_a_weight_of_a_key_that_does_not_exist_is_a_warning(
    settings: dict[str, object], level: Level, words: str
) -> None:
    found = findings.weights(Settings(**settings))
    assert (found.level, words in found.text) == (level, True)


def test_a_model_that_is_missing_fails(tmp_path: Path) -> None:
    found = findings.model(Settings(model=str(tmp_path / "none.gguf")))
    assert (found.level, found.subject) == (Level.FAIL, "model")
    assert "no such file" in found.text
    assert "--model takes" in found.remedy


@pytest.mark.parametrize(("printed", "level"), [("v20.1.0\n", Level.OK), ("v16.0.0\n", Level.WARN), ("", Level.WARN)])
def test_node_is_judged_by_its_version(printed: str, level: Level, no_tools: dict[str, str]) -> None:
    no_tools["node"] = printed
    assert findings.node(Settings()).level is level


def test_the_store_is_told_with_folder_limit_and_room(tmp_path: Path) -> None:
    found = findings.store(Settings(store_dir=str(tmp_path / "kv"), store_limit_bytes=2**30))
    assert found.level is Level.OK
    assert found.text.startswith(f"{tmp_path / 'kv'} is writable, at most 1.0 GiB, ")
    off = findings.store(Settings(store_dir="off"))
    assert (off.level, off.text) == (Level.OK, "off: no caches are saved")


def test_a_store_that_cannot_be_used_is_a_warning_as_up_starts_without_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = findings.store(Settings(store_dir=str(tmp_path / "file")))
    assert (found.level, found.text) == (Level.WARN, f"{tmp_path / 'file'} cannot be used: File exists")
    assert "store_dir" in found.remedy


def test_a_broken_model_is_one_failure_even_where_its_size_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(typer.Exit):
        doctor.doctor(model=str(tmp_path / "m.gguf"), slots="auto", context="auto", data_dir=tmp_path)
    text = capsys.readouterr().out
    assert "1 failed" in text
    assert text.count("is not a GGUF file") == 1


def test_one_failure_makes_the_doctor_fail(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(typer.Exit) as ended:
        doctor.doctor(model="/none.gguf", data_dir=tmp_path)
    assert ended.value.exit_code == 1
    text = capsys.readouterr().out
    assert "1 failed" in text
    assert "-> --model takes a GGUF file" in text


def test_warnings_alone_do_not_fail(tmp_path: Path) -> None:
    with pytest.raises(typer.Exit) as ended:
        doctor.doctor(data_dir=tmp_path)
    assert ended.value.exit_code == 0


def test_the_files_to_warm_up_with_are_listed_with_their_tokens(tmp_path: Path) -> None:
    file = tmp_path / "reviewer.md"
    file.write_text("x" * 8000)
    found = findings.warm(Settings(warm=(file,)))
    assert (found.level, found.text) == (Level.OK, "reviewer.md, about 2000 tokens")
    assert findings.warm(Settings(warm=(file,), context_tokens=1024)).level is Level.WARN
    assert findings.warm(Settings()).level is Level.OK


def test_a_bad_warm_file_fails(tmp_path: Path) -> None:
    found = findings.warm(Settings(warm=(tmp_path / "none.md",)))
    assert (found.level, found.text) == (Level.FAIL, f"{tmp_path / 'none.md'}: no such file or directory")
