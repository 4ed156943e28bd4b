"""Which processes the API is."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from infra.cli import api
from infra.cli.supervise import Stage
from infra.config import Settings
from tests.doubles.processes import REPOSITORY

pytestmark = pytest.mark.unit


def test_one_process_is_all_there_is() -> None:
    (part,) = api.processes(Settings())
    assert (part.name, part.stage, part.log.name) == ("API", Stage.API, "api.log")


def test_each_of_several_has_a_name_and_a_log(tmp_path: Path) -> None:
    parts = api.processes(Settings(api_workers=3, data_dir=tmp_path))
    assert [part.name for part in parts] == ["API 1", "API 2", "API 3"]
    assert [part.log.name for part in parts] == ["api-1.log", "api-2.log", "api-3.log"]
    assert {part.stage for part in parts} == {Stage.API}


COUNTING = """
from infra.observability import metrics
for number in range(100):
    metrics.REFUSALS.labels(str(number)).inc()
    metrics.QUEUE.labels("w1", str(number)).observe(1)
"""


def counting(environment: Mapping[str, str]) -> int:
    """The exit code of an API process that counts."""
    child = [sys.executable, "-c", COUNTING]
    return subprocess.run(child, env={**os.environ, **environment}, cwd=REPOSITORY, check=False).returncode


def test_a_process_that_comes_back_counts_on_in_its_files_which_never_grow(tmp_path: Path) -> None:
    """A file that must grow ends its process where the disk is full, and one that is left is read at each scrape."""
    part = api.processes(Settings(api_workers=2, data_dir=tmp_path))[0]
    files = {path: path.stat().st_size for path in (tmp_path / "metrics").iterdir()}
    assert all(path.stat().st_blocks * 512 >= api.COUNTERS_BYTES for path in files), "room on the disk, not only a size"
    assert [counting(part._environment), counting(part._environment)] == [0, 0]
    assert {path: path.stat().st_size for path in (tmp_path / "metrics").iterdir()} == files
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path / "metrics"))  # type: ignore[no-untyped-call]
    assert b'corral_refusals_total{reason="7"} 2.0' in generate_latest(registry)


def test_where_no_room_is_for_shared_counters_each_process_has_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file")
    parts = api.processes(Settings(api_workers=2, data_dir=tmp_path / "taken"))
    assert all("PROMETHEUS_MULTIPROC_DIR" not in part._environment for part in parts)
    assert "each API process tells its own counters only" in capsys.readouterr().err
