"""The note that says which engine belongs to which worker, for the case that both were lost sight of.

Owns: one small file a worker; the end of an engine whose worker is gone.
Never: ends a process on its number alone: numbers are used again, so the time of its start must fit too.
"""

import json
from pathlib import Path
from typing import Any

import psutil

from infra.errors import StartError

START_TOLERANCE_S = 2.0  # the time of boot is told in whole seconds
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # on Linux; elsewhere none is told
KILL_TIMEOUT_S = 10.0


def write(path: Path, pid: int) -> None:
    """Notes the engine `pid` and this process as its worker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"engine": _identity(pid), "worker": _identity(psutil.Process().pid)}))
    new.replace(path)


def remove(path: Path) -> None:
    """Forgets the engine. Does nothing when there is no note."""
    path.unlink(missing_ok=True)


def clear(path: Path) -> None:
    """Ends an engine that was left behind. Raises StartError when its worker lives: the name is in use."""
    try:
        note = json.loads(path.read_text())
        engine, worker = _find(note["engine"]), _find(note["worker"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if engine is None:
        return
    if worker is not None:
        raise StartError(
            "worker", f"{path.stem} belongs to process {worker.pid}; choose another --name or stop that one"
        )
    engine.kill()
    psutil.wait_procs([engine], timeout=KILL_TIMEOUT_S)


def _identity(pid: int) -> tuple[int, float, str] | None:
    """Its number, the seconds from boot to its start, and which boot that was."""
    try:
        # The clock may be set while a process lives, and both of these move with it.
        return pid, psutil.Process(pid).create_time() - psutil.boot_time(), _boot()
    except psutil.NoSuchProcess:
        return None


def _boot() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _find(identity: list[Any] | None) -> psutil.Process | None:
    if identity is None:
        return None
    pid, started_s, boot = identity
    now = _identity(int(pid))
    if now is None or now[2] != boot or abs(now[1] - started_s) >= START_TOLERANCE_S:
        return None
    try:
        process = psutil.Process(now[0])
        return process if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None
