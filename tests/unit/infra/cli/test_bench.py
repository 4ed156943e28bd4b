"""`corral bench` knows every measurement that there is, and gives it its options."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.cli import bench
from tests.doubles.processes import REPOSITORY

pytestmark = pytest.mark.unit
COMMAND = (sys.executable, "-c", "from infra.cli.main import main; main()", "bench")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY)


def test_every_program_among_the_benches_has_its_name_here() -> None:
    folder = REPOSITORY / "infra" / "bench"
    programs = {file.stem for file in folder.glob("*.py") if "__main__" in file.read_text()}
    assert set(bench.BENCHES) == programs


@pytest.mark.parametrize("asked", [(), ("--help",)])
def test_without_a_name_they_are_listed(asked: tuple[str, ...]) -> None:
    done = run(*asked)
    assert done.returncode == 0
    assert all(name in done.stdout for name in bench.BENCHES)


def test_options_are_those_of_the_bench() -> None:
    done = run("load", "--clients", "0")
    assert done.returncode == 2
    assert "--clients" in done.stderr
    told = run("load", "--help").stdout
    assert "--body-bytes" in told
    assert "corral bench load" in told


def test_a_folder_with_packages_of_the_same_names_is_no_matter(tmp_path: Path) -> None:
    theirs = tmp_path / "infra" / "bench"
    theirs.mkdir(parents=True)
    for file in (theirs.parent / "__init__.py", theirs / "__init__.py", theirs / "load.py"):
        file.touch()
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": ""}
    command = (sys.executable, "-P", *COMMAND[1:], "load", "--help")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, env=environment
    )
    assert "--body-bytes" in done.stdout, done.stderr


def test_an_unknown_one_is_told_with_those_there_are() -> None:
    done = run("speed")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: bench speed: is none; there are overhead, agents,")
