"""Programs that only the npm registry has, installed once into a folder that stays.

Owns: the call of npm, and that two test runs at once install a thing once.
Never: knows what is installed, or runs it.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.doubles.services import missing

INSTALL_S = 300

# Read once at import: the fixtures take such variables away from the tests themselves.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("CORRAL_", "ANTHROPIC_"))}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """`folder` exists, and nobody else installs into it inside the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(what: str, packages: list[str], folder: Path, remedy: str) -> None:
    """Install `packages` into `folder`. Skips or fails the test, as `what` is missing, when that cannot be."""
    npm = shutil.which("npm")
    if npm is None:
        missing("npm", f"install Node 20, or {remedy}")
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages]
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=INSTALL_S, check=False, cwd=folder
    )
    if done.returncode:
        missing(what, f"npm could not install it: {done.stderr[-500:]}")
