"""The note that says which engine belongs to which worker, for the case that both were lost sight of.

Owns: one small file a worker; the end of an engine whose worker is gone.
Never: ends a process on its number alone: numbers are used again, so the time of its start must fit too.
"""

import json
from pathlib import Path

import psutil

from infra.errors import StartError

# psutil's start times are steady; the clock they are told in may be set.
START_TOLERANCE_S = 2.0
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


def _identity(pid: int) -> list[float] | None:
    try:
        return [pid, psutil.Process(pid).create_time()]
    except psutil.NoSuchProcess:
        return None


def _find(identity: list[float] | None) -> psutil.Process | None:
    if identity is None:
        return None
    pid, started = identity
    try:
        process = psutil.Process(int(pid))
        same = abs(process.create_time() - started) < START_TOLERANCE_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None
