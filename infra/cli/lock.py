"""One owner for a folder: a lock that the system drops when its holder ends, however it ends.

Owns: the lock file and the words for whoever comes second.
Never: waits.
"""

import fcntl
import os
from pathlib import Path

from infra.errors import StartError


def take(path: Path, part: str, remedy: str) -> int:
    """Take the lock and return its file descriptor, to be kept open. Raises StartError that names the holder.

    A descriptor made inheritable keeps the lock over an exec. The file stays: removing it would let two hold "it".
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        raise StartError(part, f"{path.parent} is in use by pid {holder or 'unknown'}; {remedy}") from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor
