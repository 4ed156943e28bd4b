"""Child processes that die with their parent.

Owns: how a part of the house starts another one, and how it ends it. Run as a script, this file is the wrapper that
binds the command it then becomes to the life of its parent.
Never: restarts anything, knows what the child is. Standard library only: the wrapper runs without site packages.

The bond is Linux's parent death signal, sent to the child by the kernel even when the parent ended by `kill -9`. It
hangs on the THREAD that started the child, not on its process: when that thread ends, the child is killed. So call
`spawn` only from a thread that lives as long as the child should. Elsewhere than on Linux there is no such bond.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
CANNOT_EXECUTE = 127  # what a shell answers for a command that it cannot run
LOG_MODE = 0o600  # an engine's log may show what a request held


def guarded(command: Sequence[str]) -> list[str]:
    """The command line that runs `command` as a child that dies with the calling thread."""
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid()), "--", *command]


def spawn(
    command: Sequence[str], *, env: Mapping[str, str], log_path: Path, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Starts `command` guarded, in a session of its own, its output appended to `log_path`.

    Raises OSError when the log cannot be written. A command that cannot be run ends with status 127 and a line in
    the log.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, LOG_MODE)
    try:
        return subprocess.Popen(
            guarded(command),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)


def stop(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Asks the process and its group to end, kills what is left after `grace_s` seconds, and reaps. Idempotent."""
    if process.returncode is not None:
        return
    _signal_group(process, signal.SIGTERM)
    wait_for_exit(process, grace_s)
    # The leader is not reaped yet, so its number still means this group and nobody else's.
    _signal_group(process, signal.SIGKILL)
    process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and its group at once, even one that is stopped; whoever waits for it reaps it.

    Only for a process that is not reaped yet: its number could mean another one.
    """
    _signal_group(process, signal.SIGKILL)


def wait_for_exit(process: subprocess.Popen[bytes], timeout_s: float, *, wake: int | None = None) -> bool:
    """Whether the process ends within `timeout_s` seconds. On Linux it is left unreaped.

    There the wait also ends as soon as the file descriptor `wake` can be read.
    """
    if process.returncode is not None:
        return True
    if sys.platform != "linux":
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        if wake is not None:
            poller.register(wake, select.POLLIN)
        return handle in dict(poller.poll(max(0, timeout_s) * 1000))
    finally:
        os.close(handle)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        # macOS answers so for a group that holds only zombies.
        process.poll()


def _become(arguments: Sequence[str]) -> None:
    """The wrapper: binds itself to the parent, then becomes the command. Returns never."""
    parent, command = int(arguments[0]), list(arguments[2:])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before the bond was made; no signal comes for that.
        if os.getppid() != parent:
            sys.exit(1)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command is a list of the house's own, no shell
    except OSError as error:
        sys.exit(_cannot(command[0], error))


def _cannot(name: str, error: OSError) -> int:
    sys.stderr.write(f"error: cannot run {name}: {error.strerror}\n")
    return CANNOT_EXECUTE


if __name__ == "__main__":
    _become(sys.argv[1:])
