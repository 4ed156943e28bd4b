"""Real processes in tests: started with a clean environment, logged to a file, never left behind.

Owns: one child process with its log, and the search for processes that outlive their test.
Never: knows what the process does.
"""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
MARK = "CLUSTER_MARK"  # inherited by every descendant, so that one which left its parent is still found


def base_environment(home: Path) -> dict[str, str]:
    """What any child may see of this machine: no settings, no keys, an empty home."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
    # The repository's own packages come first, wherever the process is started from.
    return kept | {"HOME": str(home), "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}


class Child:
    """A process in a session of its own whose output goes to `log`. A context manager that ends it."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path) -> None:
        self.command = list(command)
        self.log = log
        self.mark = environment.get(MARK) or uuid.uuid4().hex
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                env={**environment, MARK: self.mark},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, number: int) -> None:
        """Send a signal to this process alone, its children left to themselves."""
        if self.alive:
            self.process.send_signal(number)

    def wait(self, timeout_s: float = 20) -> int:
        """The exit status. Raises subprocess.TimeoutExpired."""
        return self.process.wait(timeout_s)

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 20) -> int:
        """Ask to end; after `timeout_s` its whole group is killed. Returns the exit status."""
        self.send(number)
        try:
            return self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            return self.wait(timeout_s)

    def tail(self, lines: int = 40) -> str:
        """The end of the log, for a failing test's output."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def marked(mark: str) -> list[psutil.Process]:
    """Every living process that carries `mark` in its environment."""
    return [process for process in psutil.process_iter() if _carries(process, mark)]


def end_leftovers(mark: str, grace_s: float = 5) -> list[str]:
    """Give what carries `mark` `grace_s` to end, kill the rest. Returns the command lines of those killed."""
    _, living = psutil.wait_procs(marked(mark), timeout=grace_s)
    killed = [_describe(process) for process in living]
    for process in living:
        _kill(process)
    psutil.wait_procs(living, timeout=grace_s)
    return killed


def python(*arguments: str) -> list[str]:
    """A command line that runs the interpreter of the tests."""
    return [sys.executable, *arguments]


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return bool(process.pid != os.getpid() and process.environ().get(MARK) == mark)
    except psutil.Error:
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())}"
    except psutil.Error:
        return str(process.pid)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
