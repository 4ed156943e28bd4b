"""The name by which those who share a folder know that they do."""

from pathlib import Path

import pytest

from infra.store_folder import shared_name

pytestmark = pytest.mark.unit


def test_all_who_ask_get_the_name_that_the_first_one_gave(tmp_path: Path) -> None:
    first = shared_name(tmp_path)
    assert first
    assert shared_name(tmp_path) == first


def test_folders_have_names_of_their_own(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    assert shared_name(folders[0]) != shared_name(folders[1])


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert shared_name(tmp_path / "missing") == ""
