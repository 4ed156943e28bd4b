"""The folder of saved caches, as it is found before anything is saved.

Owns: whether the folder can be used, how much of its disk is left to others, and the words when it cannot.
Never: a file of the store (`workers.store`), or more than making the folder and one empty file to try it.
"""

import fcntl
import shutil
from pathlib import Path

SPARE_BYTES = 256 * 2**20  # of the disk; the last of it belongs to others
MIB = 2**20


def trouble(folder: Path) -> str:
    """Make the folder. Returns why nothing can be saved there, or the empty text."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / ".writable").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_SH)  # some network folders have no locks
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"{folder} cannot be used: {error.strerror}"
    return f"{folder}: {too_little_room(free)}" if free < SPARE_BYTES else ""


def too_little_room(free_bytes: int) -> str:
    """The words for a disk with so many bytes free."""
    return f"too little room: {free_bytes // MIB} MiB free, and {SPARE_BYTES // MIB} MiB of the disk are left to others"
