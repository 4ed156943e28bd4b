"""One owner for a folder."""

import os
from pathlib import Path

import pytest

from infra.cli import lock
from infra.errors import StartError

pytestmark = pytest.mark.unit


def test_the_second_is_told_who_holds_the_folder_and_what_to_do(tmp_path: Path) -> None:
    held = lock.take(tmp_path / "lock", "data folder", "")
    with pytest.raises(StartError, match=f"in use by pid {os.getpid()}; stop it"):
        lock.take(tmp_path / "lock", "data folder", "stop it")
    os.close(held)
    os.close(lock.take(tmp_path / "lock", "data folder", ""))


def test_the_file_left_by_a_dead_holder_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("999999999999\n")
    os.close(lock.take(tmp_path / "lock", "data folder", ""))
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
