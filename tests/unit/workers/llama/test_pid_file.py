"""An engine whose worker is gone is ended; one whose worker lives, and a stranger with its number, are not."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.errors import StartError
from workers.llama import pid_file

pytestmark = pytest.mark.unit
NOBODY = [2**22 + 1, 0.0, ""]


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def change(note: Path, **parts: object) -> None:
    note.write_text(json.dumps(json.loads(note.read_text()) | parts))


def test_an_engine_that_lost_its_worker_is_ended(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    note = tmp_path / "run" / "engine-w1.json"
    pid_file.write(note, sleeper.pid)
    change(note, worker=NOBODY)
    child = psutil.Process(sleeper.pid)
    pid_file.clear(note)
    assert not child.is_running()


def test_an_engine_of_a_living_worker_means_that_the_name_is_in_use(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    note = tmp_path / "engine-w1.json"
    pid_file.write(note, sleeper.pid)
    with pytest.raises(StartError, match="choose another --name"):
        pid_file.clear(note)
    assert sleeper.poll() is None


def test_a_process_that_got_the_same_number_later_is_left_alone(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    note = tmp_path / "engine-w1.json"
    pid_file.write(note, sleeper.pid)
    pid, started_s, boot = json.loads(note.read_text())["engine"]
    for stranger in ([pid, started_s - 60, boot], [pid, started_s, "another boot"]):
        change(note, engine=stranger, worker=NOBODY)
        pid_file.clear(note)
        assert sleeper.poll() is None


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_an_engine_is_known_again_after_the_clock_was_set(
    tmp_path: Path, sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    note = tmp_path / "engine-w1.json"
    pid_file.write(note, sleeper.pid)
    change(note, worker=NOBODY)
    before_s, made_s = psutil.boot_time(), psutil.Process.create_time
    # Linux tells both by the clock as it stands.
    monkeypatch.setattr(psutil, "boot_time", lambda: before_s + jump_s)
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: made_s(process) + jump_s)
    child = psutil.Process(sleeper.pid)
    pid_file.clear(note)
    assert not child.is_running()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"engine": 3}', '{"engine": null, "worker": null}'])
def test_a_note_that_makes_no_sense_is_ignored(tmp_path: Path, text: str) -> None:
    note = tmp_path / "engine-w1.json"
    note.write_text(text)
    pid_file.clear(note)


def test_a_note_can_be_removed_twice(tmp_path: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    note = tmp_path / "engine-w1.json"
    pid_file.write(note, sleeper.pid)
    pid_file.remove(note)
    pid_file.remove(note)
    pid_file.clear(note)
