"""The peers' packages, each in a folder of its own under one cache folder.

Owns: which versions are measured, how each is installed, and where its program then stands.
Never: starts a peer, or installs anything into Corral's own environment.

Versions are fixed, so that two runs compare the same programs; a peer's settings here are those of its version.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Literal

from infra import guard
from infra.errors import StartError

INSTALL_LIMIT_S = 600.0
GRACE_S = 5.0
MARK = ".installed"  # written last, so that a broken installation is done again
SHOWN = 400  # characters of a failed installation's log


@dataclass(frozen=True, slots=True)
class Package:
    """`requirement` as its installer takes it; `program` is a path inside the folder."""

    name: str
    installer: Literal["pip", "npm"]
    requirement: str
    version: str
    program: str

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.version}"


LITELLM = Package("litellm", "pip", "litellm[proxy]", "1.108.7", "bin/litellm")
VLLM_ROUTER = Package("vllm-router", "pip", "vllm-router", "0.1.17", "bin/vllm-router")
# The newest that runs on Node 20.
CLAUDE_CODE_ROUTER = Package(
    "claude-code-router",
    "npm",
    "@musistudio/claude-code-router",
    "2.0.0",
    "node_modules/@musistudio/claude-code-router/dist/cli.js",
)


def default_cache() -> Path:
    """Where packages are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "corral" / "bench-peers"


def install(package: Package, cache: Path) -> Path:
    """The program of `package`, installed if it is not there. Raises StartError with the installer's last words."""
    folder = cache.absolute() / package.folder
    if not (folder / MARK).exists():
        folder.mkdir(parents=True, exist_ok=True)
        for command in _commands(package, folder):
            _do(command, package, folder / "install.log")
        (folder / MARK).touch()
    return folder / package.program


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for programs that are not ours: nothing of Corral's, of this Python or of a proxy."""
    hidden = ("CORRAL_", "PYTHON", "VIRTUAL_ENV", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "ANTHROPIC_", "OPENAI_")
    return {name: value for name, value in environ.items() if not name.upper().startswith(hidden)}


def _commands(package: Package, folder: Path) -> Iterator[list[str]]:
    if package.installer == "npm":
        if not (which("npm") and which("node")):
            raise StartError(package.name, "needs Node 20 and npm on PATH")
        yield ["npm", "install", "--no-fund", "--no-audit", "--prefix", str(folder), _exact(package, "@")]
        return
    yield [sys.executable, "-m", "venv", "--clear", str(folder)]
    yield [str(folder / "bin" / "pip"), "install", "--quiet", _exact(package, "==")]


def _exact(package: Package, sign: str) -> str:
    return f"{package.requirement}{sign}{package.version}"


def _do(command: list[str], package: Package, log: Path) -> None:
    process = guard.spawn(command, env=_installing(os.environ), log_path=log)
    try:
        ended = guard.wait_for_exit(process, INSTALL_LIMIT_S)
    finally:
        guard.stop(process, 0 if sys.exc_info()[0] is None else GRACE_S)
    if not ended or process.returncode != 0:
        words = log.read_text(errors="replace")[-SHOWN:].strip() if log.exists() else ""
        problem = "failed" if ended else f"took longer than {INSTALL_LIMIT_S:.0f} s"
        raise StartError(package.name, f"its installation {problem}; {log} ends with: {words}")


def _installing(environ: Mapping[str, str]) -> dict[str, str]:
    """An installer may need the way to its registry, so proxies stay."""
    return {name: value for name, value in environ.items() if not name.startswith(("CORRAL_", "PYTHON", "VIRTUAL_ENV"))}
