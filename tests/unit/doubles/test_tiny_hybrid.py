"""The tiny hybrid as a file: layers of both kinds, and the same bytes each time."""

from pathlib import Path

import pytest

from infra import model_facts
from tests.doubles.tiny_hybrid import write

pytestmark = pytest.mark.unit


def test_it_has_layers_with_a_cache_and_layers_with_a_state(tmp_path: Path) -> None:
    facts = model_facts.read(write(tmp_path))
    assert len(facts.caches) == 2
    assert facts.state_bytes > 0


def test_it_is_written_once_and_the_same_each_time(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    assert write(tmp_path).read_bytes() == write(tmp_path / "again").read_bytes()
    write(tmp_path).write_bytes(b"kept")
    assert write(tmp_path).read_bytes() == b"kept"
