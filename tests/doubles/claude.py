"""The real Claude Code, run as a person would: its own process, an empty home, an empty repository.

Owns: where its program is, its installation when there is none, its environment, and the reading of its output.
Never: an address, a key or a setting of the machine's own user.
"""

import itertools
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.doubles import npm
from tests.doubles.services import missing

PACKAGE = "@anthropic-ai/claude-code"
VERSION = "2.1.197"

# Read once at import: the fixtures take such variables away from the tests themselves.
FOLDER = Path(os.environ.get("CORRAL_TEST_CLAUDE_DIR") or Path(tempfile.gettempdir()) / "corral-test-claude")

Event = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What one run printed. `events` holds the lines of stream-json, or the one object of json."""

    status: int
    events: tuple[Event, ...]
    stdout: str
    stderr: str

    @property
    def result(self) -> Event:
        """The object of type `result`. Raises AssertionError with all output when there is none."""
        found = [event for event in self.events if event.get("type") == "result"]
        if not found:
            raise AssertionError(f"Claude Code ended with {self.status}\n{self.stdout[-4000:]}\n{self.stderr[-4000:]}")
        return found[-1]

    @property
    def text(self) -> str:
        return str(self.result.get("result", ""))

    @property
    def turns(self) -> int:
        return int(self.result["num_turns"])

    @property
    def session(self) -> str:
        return str(self.result["session_id"])


class ClaudeCode:
    """Runs of one program; each in a workspace of its own below `folder` unless one is named."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.numbers = itertools.count(1)

    def run(
        self,
        prompt: str,
        *,
        url: str,
        agent: str | None = None,
        priority: int | None = None,
        key: str = "any-key",
        allowed_tools: Sequence[str] = ("Bash",),
        extra_env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        workspace: str | None = None,
        timeout_s: float = 90,
        output: Literal["json", "stream-json"] = "json",
    ) -> Outcome:
        """Ask once, in print mode, and wait for the end.

        The same `workspace` keeps home and repository, so that `arguments` may hold --continue.
        Raises AssertionError with what was printed when it takes longer than `timeout_s`.
        """
        home, repository = self._workspace(workspace or f"run-{next(self.numbers)}")
        command = [str(self.program), "-p", prompt, "--output-format", output, *arguments]
        command += ["--verbose"] if output == "stream-json" else []
        command += ["--allowedTools", ",".join(allowed_tools)] if allowed_tools else []
        environment = _environment(home, url, key, _headers(agent, priority)) | dict(extra_env or {})
        process = subprocess.Popen(
            command,
            cwd=repository,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            raise AssertionError(f"Claude Code took over {timeout_s} s\n{stdout[-4000:]}\n{stderr[-4000:]}") from None
        return Outcome(process.returncode, _events(stdout), stdout, stderr)

    def _workspace(self, name: str) -> tuple[Path, Path]:
        home, repository = self.folder / name / "home", self.folder / name / "repository"
        if not repository.exists():
            home.mkdir(parents=True)
            repository.mkdir()
            subprocess.run(["git", "init", "-q", str(repository)], check=True, env=_git_environment(home))
        return home, repository


def find_or_install() -> Path:
    """The program, installed once into FOLDER if it is not there. Skips or fails the test when that cannot be."""
    if shutil.which("git") is None:
        missing("git", "install it; Claude Code is run inside a repository")
    with npm.locked(FOLDER):
        program = _find(FOLDER)
        if program is None:
            remedy = f"put {PACKAGE} into the folder named by CORRAL_TEST_CLAUDE_DIR"
            npm.install("Claude Code", [f"{PACKAGE}@{VERSION}"], FOLDER, remedy)
            program = _find(FOLDER)
    if program is None:
        missing("Claude Code", f"npm installed no program for {platform.system()} {platform.machine()} in {FOLDER}")
    return program


def _find(folder: Path) -> Path | None:
    """The platform's own program, which works even where the package's install step was not allowed."""
    machine = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine(), "")
    scope = folder / "node_modules" / "@anthropic-ai"
    names = [f"claude-code-{sys.platform}-{machine}", f"claude-code-{sys.platform}-{machine}-musl"]
    found = [scope / name / "claude" for name in names if (scope / name / "claude").is_file()]
    return found[0] if found else None


def _headers(agent: str | None, priority: int | None) -> dict[str, str]:
    named = {"X-Agent-Id": agent, "X-Priority": None if priority is None else str(priority)}
    return {name: value for name, value in named.items() if value is not None}


def _environment(home: Path, url: str, key: str, headers: Mapping[str, str]) -> dict[str, str]:
    environment = _git_environment(home) | {
        "TERM": "xterm",
        "IS_SANDBOX": "1",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": key,
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if headers:
        environment["ANTHROPIC_CUSTOM_HEADERS"] = "\n".join(f"{name}: {value}" for name, value in headers.items())
    return environment


def _git_environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home)}


def _events(stdout: str) -> tuple[Event, ...]:
    lines = [line for line in stdout.splitlines() if line.startswith("{")]
    try:
        return tuple(json.loads(line) for line in lines)
    except ValueError:
        return ()
