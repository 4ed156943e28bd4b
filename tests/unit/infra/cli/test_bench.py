"""`corral bench` knows every measurement that there is, and gives it its options."""

import os
import re
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
    environment = os.environ | {"COLUMNS": "80"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY, env=environment
    )


def test_every_program_among_the_benches_has_its_name_here() -> None:
    folder = REPOSITORY / "infra" / "bench"
    files = [*folder.glob("*.py"), *folder.glob("*/__main__.py")]
    programs = {
        file.parent.name if file.stem == "__main__" else file.stem
        for file in files
        if "if __name__" in file.read_text()
    }
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


def test_a_folder_with_an_infra_of_its_own_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "infra" / "bench").mkdir(parents=True)
    for name in ("infra/__init__.py", "infra/bench/__init__.py", "infra/bench/load.py"):
        (tmp_path / name).touch()
    command = (sys.executable, "-P", *COMMAND[1:], "load", "--help")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert (done.returncode, "--body-bytes" in done.stdout) == (0, True), done.stderr


def test_an_unknown_one_is_told_with_those_there_are() -> None:
    done = run("speed")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: bench speed: is none; there are overhead, agents,")


def test_help_by_its_short_name_names_all_that_may_be_chosen() -> None:
    for name, chosen in (
        ("overhead", ("first", "rate", "processor", "where", "commands", "streams")),
        ("engine", ("threads", "flash", "kv", "batch", "ubatch", "ngram")),
        ("peers", ("first", "small", "rate", "memory", "four", "agents", "kill")),
    ):
        done = run(name, "-h")
        assert done.returncode == 0, done.stderr
        words = re.findall(r"[a-z]+", done.stdout)
        assert set(chosen) <= set(words), (name, words)
        assert "…" not in done.stdout


def test_a_paragraph_of_the_help_fills_its_lines() -> None:
    lines = [line.strip() for line in run("engine", "--help").stdout.splitlines()]
    begin = next(number for number, line in enumerate(lines) if line.startswith("Each setting"))
    paragraph = lines[begin : lines.index("", begin)]
    assert all(len(line) > 60 for line in paragraph[:-1]), paragraph
