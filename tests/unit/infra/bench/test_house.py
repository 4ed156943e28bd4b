"""A Corral that a bench starts for itself."""

import subprocess
from pathlib import Path

import pytest

from infra.bench import house
from infra.errors import StartError

pytestmark = pytest.mark.unit


def test_a_model_that_is_not_there_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(StartError, match="no such file"), house.started(str(tmp_path / "none.gguf")):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_was_ended_while_it_stood_still_is_one_clear_sentence() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        engine = house.Engine("http://127.0.0.1:1", "", process.pid)
        standing = engine.frozen()
        standing.__enter__()
        process.kill()
        process.wait()
        with pytest.raises(StartError, match="was ended meanwhile"):
            standing.__exit__(None, None, None)
