"""Memory limits of the control groups around this process."""

from pathlib import Path

import psutil
import pytest

from infra import cgroup, machine

pytestmark = pytest.mark.unit


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the system's; the file `own` says which groups this process is in."""
    monkeypatch.setattr(cgroup, "GROUPS", tmp_path)
    monkeypatch.setattr(cgroup, "OWN_GROUPS", tmp_path / "own")
    return tmp_path


def written(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_limit_of_each_group_around_counts_and_file_cache_is_not_held(groups: Path) -> None:
    written(groups, own="0::/house/room\n")
    written(groups / "house" / "room", memory__max="max\n", memory__current="5\n")
    stat = "anon 600\ninactive_file 100\nactive_file 50\n"
    written(groups / "house", memory__max="1000\n", memory__current="700\n", memory__stat=stat)
    assert list(cgroup.memory_limits()) == [(1000, 600)]


def test_version_1_is_read_too(groups: Path) -> None:
    written(groups, own="9:name=systemd:/x\n4:cpu,memory:/gone\n0::/\n")
    stat = "inactive_file 1\ntotal_inactive_file 200\n"
    files = {"memory.limit_in_bytes": "1000\n", "memory.usage_in_bytes": "700\n", "memory.stat": stat}
    written(groups / "memory", **files)
    assert list(cgroup.memory_limits()) == [(1000, 500)]


def test_without_groups_there_is_no_limit(groups: Path) -> None:
    assert list(cgroup.memory_limits()) == []
    written(groups, own="nonsense\n")
    assert list(cgroup.memory_limits()) == []


def test_a_container_has_no_more_than_its_limit(groups: Path) -> None:
    whole = psutil.virtual_memory().total
    assert machine.memory_bytes()[0] == whole
    written(groups, own="0::/\n", memory__max="1000", memory__current="400")
    assert machine.memory_bytes() == (1000, 600)
    written(groups, memory__max="1000", memory__current="1400")
    assert machine.memory_bytes() == (1000, 0)
