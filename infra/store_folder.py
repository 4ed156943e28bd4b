"""The folder of saved caches, as it is found before anything is saved.

Owns: whether the folder can be used, how much of its disk is left to others, the words when it cannot, and a name of
the folder by which those who share it, on whatever host, know that they do.
Never: a file of the store (`workers.store`), or more than making the folder, one empty file to try it, and its name.
"""

import fcntl
import secrets
import shutil
from contextlib import suppress
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


def shared_name(folder: Path) -> str:
    """The name that the folder was given by whoever asked first; "" when it cannot be read or written."""
    with suppress(OSError):
        with suppress(FileExistsError), (folder / ".name").open("x") as file:
            file.write(secrets.token_hex(8))
        return (folder / ".name").read_text()
    return ""


def too_little_room(free_bytes: int) -> str:
    """The words for a disk with so many bytes free."""
    return f"too little room: {free_bytes // MIB} MiB free, and {SPARE_BYTES // MIB} MiB of the disk are left to others"
