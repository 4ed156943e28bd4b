"""The folder of saved caches, as it is found before anything is saved.

Owns: whether the folder can be used, how much of its disk is left to others, and the words when it cannot.
Never: a file of the store (`workers.store`), or more than making the folder and one empty file to try it.
"""

import fcntl
import shutil
from pathlib import Path

SPARE_BYTES = 256 * 2**20  # of the disk; the last of it belongs to others
MIB = 2**20


def unusable(folder: Path) -> str:
    """Make the folder. Returns why nothing can be written or locked there, or the empty text."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / ".writable").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_SH)  # nobody locks it alone, so it never waits; some network folders cannot
    except OSError as error:
        return f"{folder} cannot be used: {error.strerror}"
    return ""


def trouble(folder: Path) -> str:
    """As `unusable`; that there is too little room is told too, though room may be made while a worker runs."""
    if reason := unusable(folder):
        return reason
    free = shutil.disk_usage(folder).free
    return f"{folder}: {too_little_room(free)}" if free < SPARE_BYTES else ""


def too_little_room(free_bytes: int) -> str:
    """The words for a disk with so many bytes free."""
    return f"too little room: {free_bytes // MIB} MiB free, and {SPARE_BYTES // MIB} MiB of the disk are left to others"
