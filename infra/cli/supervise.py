"""The processes of `corral up`: started in order, watched, stopped in order, never left behind.

Owns: each part's process and log, restarts with back-off, the order and patience of stopping.
Never: what a part does, or why.

    start    broker -> workers -> API -> Flower
    stop     API (running answers end) -> workers (the same) -> Flower -> broker
    dies     it is started again, later each time; what has died too often stays down, and without broker, API or
             workers there is nothing to serve
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import IntEnum
from operator import methodcaller
from pathlib import Path

from infra import guard
from infra.errors import StartError

ERROR = "error: "
LOG_LIMIT_BYTES = 20 * 2**20  # above it a log is put aside at the next start
TAIL_BYTES = 64 * 1024
FIRST_DELAY_S = 1.0
RESTARTS = 5  # delays 1, 2, 4, 8, 16 s
CALM_S = 300.0  # after this long alive, earlier deaths are forgotten


class Stage(IntEnum):
    """What is stopped together, in this order."""

    API = 0
    WORKERS = 1
    FLOWER = 2
    BROKER = 3


class Part:
    """One process that can be started again."""

    def __init__(
        self,
        name: str,
        stage: Stage,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        self.name = name
        self.stage = stage
        self.log = log
        self.restarts = 0
        self.due: float | None = None  # when it is to be started again, on the monotonic clock
        self.gone = False  # given up
        self.started = 0.0
        self._command = list(command)
        self._environment = dict(environment)
        self._log_start = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process. Only from the main thread: the bond between parent and child hangs on the thread."""
        self._log_start = _make_room(self.log)
        self.process = guard.spawn(self._command, env=self._environment, log_path=self.log)
        self.started = time.monotonic()
        self.due = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def check(self) -> None:
        """Raises StartError in the part's own words when its process has ended."""
        if not self.alive:
            raise StartError(self.name, self.last_words())

    def last_words(self) -> str:
        """Why it ended: its own `error:` line of this run, else its status and where to look."""
        for line in reversed(self._tail()):
            if line.startswith(ERROR):
                return _without(self.name, line.removeprefix(ERROR).strip())
        status = self.process.returncode if self.process else None
        how = (
            f"was killed by {signal.Signals(-status).name}" if status and status < 0 else f"ended with status {status}"
        )
        return f"{how}; its log is {self.log}"

    def stop(self, grace_s: float) -> None:
        self.due = None
        if self.process is not None:
            guard.stop(self.process, grace_s)

    def kill(self) -> None:
        """End it and its group at once; returns without waiting."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def was_killed(self) -> bool:
        """It ended by SIGKILL: its patience was over, or someone's was."""
        return self.process is not None and self.process.returncode == -signal.SIGKILL

    def _tail(self) -> list[str]:
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(self._log_start, self.log.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
        return []


class House:
    """All parts of one `corral up`. `say` is told what happens, in sentences."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.parts: list[Part] = []
        self._say = say
        self._at_once = False

    def start(self, part: Part) -> None:
        """Start a part and be answerable for it from now on."""
        self.parts.append(part)
        part.start()

    def check(self) -> None:
        """Raises StartError when any part has ended; for the time of starting, when nothing is restarted."""
        for part in self.parts:
            part.check()

    def tend(self, now: float) -> float:
        """Look after the parts; returns seconds until something is due. Raises StartError when the house must end."""
        for part in self.parts:
            if part.due is not None and part.due <= now:
                part.start()
                self._say(f"{part.name}: started again")
            elif part.due is None and not part.gone and not part.alive:
                self._lost(part, now)
        return min((part.due - now for part in self.parts if part.due is not None), default=3600.0)

    def stop(self, grace_s: Callable[[Stage], float]) -> None:
        """Stop every part, stage by stage; each part of a stage gets the same time. Idempotent."""
        for stage in Stage:
            living = [part for part in self.parts if part.stage is stage and part.alive]
            if living:
                limit_s = grace_s(stage)
                self._say(f"Stopping {' and '.join(part.name for part in living)} (up to {limit_s:.0f} s)")
                with ThreadPoolExecutor(len(living)) as pool:
                    list(pool.map(methodcaller("stop", limit_s), living))
                for part in () if self._at_once else filter(Part.was_killed, living):
                    self._say(f"{part.name} did not end by itself and was killed; its log is {part.log}")

    def kill(self) -> None:
        """End everything at once."""
        self._at_once = True
        for part in self.parts:
            part.kill()

    def _lost(self, part: Part, now: float) -> None:
        words = part.last_words()
        if now - part.started > CALM_S:
            part.restarts = 0
        if part.restarts < RESTARTS:
            delay = FIRST_DELAY_S * 2**part.restarts
            part.restarts += 1
            part.due = now + delay
            self._say(f"{part.name}: {words}. Starting it again in {delay:.0f} s")
            return
        part.gone = True
        if part.stage in (Stage.BROKER, Stage.WORKERS, Stage.API) and self._all_gone(part.stage):
            raise StartError(part.name, f"ended {RESTARTS + 1} times in a row: {words}")
        self._say(f"{part.name}: ended {RESTARTS + 1} times in a row and stays down: {words}")

    def _all_gone(self, stage: Stage) -> bool:
        return all(part.gone for part in self.parts if part.stage is stage)


def _make_room(log: Path) -> int:
    """The size of the log before this run; one that has grown large is put aside as `.1` first."""
    with suppress(FileNotFoundError):
        size = log.stat().st_size
        if size <= LOG_LIMIT_BYTES:
            return size
        log.replace(log.with_suffix(".log.1"))
    return 0


def _without(name: str, sentence: str) -> str:
    """The sentence without the part's name before it, which is said anyway."""
    beginning, colon, rest = sentence.partition(": ")
    return rest if colon and beginning.lower() in name.lower() else sentence
