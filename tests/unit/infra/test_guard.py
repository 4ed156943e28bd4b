"""A guarded child dies with its parent, keeps its log, and ends when told, even if it does not want to."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from infra import guard

pytestmark = pytest.mark.unit

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]
# A parent that starts one guarded sleeper, tells its pid and then waits to be killed.
PARENT = """
import os, sys, pathlib
from infra import guard
child = guard.spawn([sys.executable, "-c", "import time; time.sleep(600)"],
                    env=os.environ, log_path=pathlib.Path(sys.argv[1]))
print(child.pid, flush=True)
sys.stdin.read()
"""


def started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """The child once it has become the command and has written its first line."""
    process = guard.spawn(command, env=os.environ, log_path=log)
    for _ in range(400):
        if log.read_bytes():
            return process
        assert not guard.wait_for_exit(process, 0.02)
    raise AssertionError("the child did not say that it is up")


def test_a_child_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    parent.stdin.close()
    # Orphaned, it is reaped by whoever adopts it; a zombie is dead too.
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_child_dies_with_the_thread_that_started_it(tmp_path: Path) -> None:
    children: list[subprocess.Popen[bytes]] = []
    thread = threading.Thread(target=lambda: children.append(started(SLEEPER, tmp_path / "log")))
    thread.start()
    thread.join()
    assert guard.wait_for_exit(children[0], 10)
    assert children[0].wait() == -signal.SIGKILL


def test_a_child_whose_parent_is_already_gone_does_not_start(tmp_path: Path) -> None:
    command = guard.guarded([sys.executable, "-c", "print('ran')"])
    command[command.index("--") - 1] = str(2**22 + 1)
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_output_and_errors_are_appended_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "part.log"
    for word in ("first", "second"):
        code = f"import sys; print('{word}'); sys.stderr.write('{word} error\\n')"
        assert guard.spawn([sys.executable, "-c", code], env=os.environ, log_path=log).wait() == 0
    assert sorted(log.read_text().split("\n")) == ["", "first", "first error", "second", "second error"]


def test_the_child_has_a_session_of_its_own_and_no_input(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()))"
    assert guard.spawn([sys.executable, "-c", code], env=os.environ, log_path=log).wait() == 0
    assert log.read_text() == "True ''\n"


def test_the_child_sees_only_the_environment_given(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import os; print(os.environ.get('GIVEN'), 'HOME' in os.environ)"
    guard.spawn([sys.executable, "-c", code], env={"GIVEN": "yes"}, log_path=log, cwd=tmp_path).wait()
    assert log.read_text() == "yes False\n"


def test_a_command_that_does_not_exist_says_so_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert guard.spawn(["/no/such/program"], env=os.environ, log_path=log).wait() == guard.CANNOT_EXECUTE
    assert log.read_text() == "error: cannot run /no/such/program: No such file or directory\n"


def test_a_log_that_cannot_be_written_is_an_error_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        guard.spawn(SLEEPER, env=os.environ, log_path=tmp_path / "file" / "log")


def test_stop_ends_a_willing_child_by_the_polite_signal(tmp_path: Path) -> None:
    process = started(SLEEPER, tmp_path / "log")
    guard.stop(process, grace_s=30)
    assert process.returncode == -signal.SIGTERM


def test_stop_kills_a_child_that_does_not_listen(tmp_path: Path) -> None:
    process = started(STUBBORN, tmp_path / "log")
    guard.stop(process, grace_s=0.05)
    assert process.returncode == -signal.SIGKILL


def test_stop_kills_the_grandchildren_too(tmp_path: Path) -> None:
    code = f"import subprocess; print(subprocess.Popen({SLEEPER!r}).pid, flush=True); import time; time.sleep(600)"
    process = started([sys.executable, "-c", code], tmp_path / "log")
    grandchild = psutil.Process(int((tmp_path / "log").read_text().split()[0]))
    guard.stop(process, grace_s=10)
    psutil.wait_procs([grandchild], timeout=10)
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


def test_stop_may_be_called_again_and_on_the_dead(tmp_path: Path) -> None:
    process = guard.spawn([sys.executable, "-c", ""], env=os.environ, log_path=tmp_path / "log")
    assert guard.wait_for_exit(process, 30)
    guard.stop(process, grace_s=1)
    guard.stop(process, grace_s=1)
    assert process.returncode == 0


def test_waiting_for_an_exit_can_be_cut_short(tmp_path: Path) -> None:
    process = started(SLEEPER, tmp_path / "log")
    reader, writer = os.pipe()
    os.write(writer, b"x")
    assert not guard.wait_for_exit(process, 60, wake=reader)
    guard.stop(process, grace_s=30)
    os.close(reader)
    os.close(writer)
