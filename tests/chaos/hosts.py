"""Hosts of their own for workers: network namespaces, each behind a cable that can be pulled.

Owns: the namespaces, their addresses and cables, and whether this machine lets us have them.
Never: a process of Corral.

Nobody need be root: `move_in` starts the suite anew in a user namespace, in which it may do all this, and whose network
nobody else sees.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.doubles.services import wait_for

INSIDE = "CHAOS_HOSTS"
APART = ("unshare", "--user", "--map-root-user", "--net")


def why_not() -> str:
    """Why this machine lets us have no hosts; '' when it does."""
    pair = ("ip", "link", "add", "one", "type", "veth", "peer", "name", "other")
    try:
        tried = subprocess.run([*APART, *pair], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return tried.stderr.strip() if tried.returncode else ""


def move_in(arguments: Sequence[str]) -> None:
    """Run this command with these arguments where hosts can be had, and end as it does; returns there."""
    if os.environ.get(INSIDE):
        _ip("link", "set", "lo", "up")
        return
    command = [*APART, sys.executable, "-m", "tests.chaos", *arguments]
    sys.exit(subprocess.call(command, env={**os.environ, INSIDE: "1"}))


class Hosts:
    """A host for each of `names`, each on a network that it shares with this one alone. A context manager."""

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        for name, number in self._numbers.items():
            self._holders[name] = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
            wait_for(lambda name=name: self._is_apart(name), f"the host of {name}")  # type: ignore[misc]
            holder = str(self._holders[name].pid)
            _ip("link", "add", f"cable{number}", "type", "veth", "peer", "name", "eth0", "netns", holder)
            _ip("address", "add", f"{self.near(name)}/24", "dev", f"cable{number}")
            _ip("address", "add", f"10.77.{number}.2/24", "dev", "eth0", on=self.command(name))
            for device in ("lo", "eth0"):
                _ip("link", "set", device, "up", on=self.command(name))
            self.plug(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for holder in self._holders.values():
            holder.send_signal(signal.SIGKILL)
            holder.wait()

    def command(self, name: str) -> list[str]:
        """What a command begins with that is to run there; its process is the command's own."""
        return ["nsenter", "--target", str(self._holders[name].pid), "--net"]

    def near(self, name: str) -> str:
        """This host's address, as that one knows it."""
        return f"10.77.{self._numbers[name]}.1"

    def pull(self, name: str) -> None:
        """Nothing comes through its cable any more; no connection hears of that."""
        _ip("link", "set", f"cable{self._numbers[name]}", "down")

    def plug(self, name: str) -> None:
        _ip("link", "set", f"cable{self._numbers[name]}", "up")

    def _is_apart(self, name: str) -> bool:
        return _network(str(self._holders[name].pid)) != _network("self")


def _network(process: str) -> str:
    return str((Path("/proc") / process / "ns" / "net").readlink())


def _ip(*words: str, on: Sequence[str] = ()) -> None:
    subprocess.run([*on, "ip", *words], check=True)
