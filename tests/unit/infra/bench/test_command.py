"""What every bench does around its own work: it ends what it began, and says in a sentence what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

LIMIT_S = 60
HEAD = """
import tempfile
import time
from infra.bench.command import JsonFile, run

"""
WAITS = """
def main() -> None:
    with tempfile.TemporaryDirectory(dir=FOLDER):
        print("began", flush=True)
        time.sleep(600)
"""
HELD = """
import os
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background lets its children ignore it
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
os.kill(os.getpid(), signal.SIGINT)
"""
WRITES = """
def main(json_file: JsonFile = None) -> None:
    json_file.write_text("figures")
"""
FAILS = """
def main(json_file: JsonFile = None, key: str = "") -> None:
    raise RuntimeError("a fault of the bench")
"""


def bench(main: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"{HEAD}{main}\nraise SystemExit(run(main))", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_bench_that_is_told_to_end_leaves_no_folder_behind(tmp_path: Path) -> None:
    with bench(WAITS.replace("FOLDER", repr(str(tmp_path)))) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.terminate()
        assert process.wait(LIMIT_S) == 143
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    for path, problem in ((tmp_path / "none" / "file", "there is no folder"), (tmp_path, "is a folder")):
        with bench(FAILS, "--json", str(path)) as process:
            _, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 1
        assert said.startswith(f"error: --json {path}: {problem}")


def test_a_fault_of_the_bench_shows_no_variable(tmp_path: Path) -> None:
    with bench(FAILS, "--json", str(tmp_path / "file"), "--key", "secret-of-anna") as process:
        _, said = process.communicate(timeout=LIMIT_S)
    assert "a fault of the bench" in said
    assert "secret-of-anna" not in said


def test_a_ctrl_c_that_came_while_it_was_loaded_is_heard_without_a_stack_trace() -> None:
    held = HELD + WAITS.replace("FOLDER", repr("/nowhere"))
    with bench(held) as process:
        said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (130, ("", ""))


@pytest.mark.parametrize("address", [("--url", "http://127.0.0.1:1"), ("--corral=http://127.0.0.1:1",)])
def test_an_address_beside_start_is_refused(address: tuple[str, ...]) -> None:
    with bench(FAILS, "--start", *address) as process:
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert said == f"error: {address[0].partition('=')[0]}: asks who runs already; leave --start out\n"


@pytest.mark.parametrize("path", ["/dev/full", "/proc/none.json"])
def test_a_file_that_cannot_be_written_after_all_is_one_line(path: str) -> None:
    with bench(WRITES, "--json", path) as process:
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert said.startswith("error: ")
    assert said.count("\n") == 1
