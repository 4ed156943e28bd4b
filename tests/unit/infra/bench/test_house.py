"""A Corral that a bench starts for itself."""

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
