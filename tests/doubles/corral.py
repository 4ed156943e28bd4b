"""The `corral` command as a process: started, read, and searched for what it leaves behind.

Owns: the environment and logs of the commands of one test.
Never: imports a part of Corral.
"""

import re
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.doubles.processes import MARK, Child, base_environment, end_leftovers, marked
from tests.doubles.services import wait_for

COMMAND = (sys.executable, "-c", "from infra.cli.main import main; main()")
READY = "Ctrl-C stops everything"
START_S = 90.0


class Corral:
    """Runs `corral` commands in one folder. A context manager; leaving it ends all that still runs.

    `variables` are environment variables of every command.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.mark = uuid.uuid4().hex
        self.variables = base_environment(folder) | {MARK: self.mark} | dict(variables or {})
        self.started: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for log in [*(child.log for child in self.started), *sorted(self.data.glob("logs/*.log"))]:
            # Shown by pytest for a test that failed; the fixture itself cannot know.
            sys.stdout.write(f"\n--- {log.name} ---\n{log.read_text(errors='replace')[-3000:]}\n")
        end_leftovers(self.mark, grace_s=0)
        for child in self.started:
            child.wait()

    def run(self, *arguments: str, **variables: str) -> Child:
        """Start a command and return at once."""
        log = self.folder / f"corral{len(self.started)}.log"
        self.started.append(Child([*COMMAND, *arguments], log, self.variables | variables, self.folder))
        return self.started[-1]

    def up(self, *arguments: str, **variables: str) -> Child:
        """Start `up` without Flower on a free port."""
        return self.run("up", "--port", "0", "--no-flower", "--data-dir", str(self.data), *arguments, **variables)

    def serving(self, *arguments: str, **variables: str) -> Child:
        """An `up` that has come up. Raises AssertionError with what it said when it does not."""
        child = self.up(*arguments, **variables)
        until_said(child, READY)
        return child

    def left(self) -> list[psutil.Process]:
        """Every process that any of the commands has left running."""
        return [process for process in marked(self.mark) if process.status() != psutil.STATUS_ZOMBIE]

    def running(self, words: str) -> list[psutil.Process]:
        """Those of them with `words` in their command line."""
        return [process for process in self.left() if words in " ".join(process.cmdline())]


def said(child: Child) -> str:
    """All that a command has printed so far."""
    return child.log.read_text(errors="replace")


def until_said(child: Child, words: str) -> None:
    """Wait until a command has printed `words`. Raises AssertionError when it ends or dawdles without."""
    wait_for(lambda: words in said(child) or not child.alive, words, START_S)
    if words not in said(child):
        raise AssertionError(f"ended with {child.process.returncode} without saying {words!r}:\n{said(child)}")


def address(child: Child) -> str:
    """The API's address as `up` printed it."""
    found = re.search(r"API +(http://\S+)", said(child))
    if found is None:
        raise AssertionError(f"no address in:\n{said(child)}")
    return found[1]
