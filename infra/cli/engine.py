"""Which engine a worker here would run, and what it can use of the GPU.

Owns: the search (setting, PATH, embedded), the devices it lists, the remedy when a card lies idle.
Never: starts an engine for work; that is the worker's.
"""

import importlib.util
import re
import shutil
from dataclasses import dataclass

from infra.cli import machine
from infra.config import Settings
from infra.errors import StartError

EMBEDDED = "embedded"
GPU_BUILDS = (
    "get a GPU build of llama-server: a release from https://github.com/ggml-org/llama.cpp/releases, "
    "`brew install llama.cpp`, `conda install -c conda-forge llama.cpp`, or build llama.cpp with "
    "`cmake -B build -DGGML_CUDA=ON` (AMD: -DGGML_HIP=ON); then put it on PATH or set CORRAL_LLAMA_SERVER"
)


@dataclass(frozen=True)
class Engine:
    """`path` of the binary, or `embedded`."""

    path: str

    @property
    def embedded(self) -> bool:
        return self.path == EMBEDDED

    def devices(self) -> tuple[str, ...]:
        """What it can compute on besides the CPU, as `CUDA0: NVIDIA H200 (143771 MiB, ...)`. Takes a second or two."""
        if self.embedded:
            return ()
        _, _, listed = machine.output_of(self.path, "--list-devices").partition("Available devices:")
        return tuple(line.strip() for line in listed.splitlines() if re.match(r"\s+\w+\d*: ", line))


def find(settings: Settings) -> Engine:
    """The engine of these settings. Raises StartError when there is none."""
    named = settings.llama_server
    if named and named != EMBEDDED:
        path = shutil.which(named)
        if path is None:
            raise StartError("engine", f"CORRAL_LLAMA_SERVER={named}: no such program; name a llama-server binary")
        return Engine(path)
    on_path = None if named else shutil.which("llama-server")
    if on_path:
        return Engine(on_path)
    if importlib.util.find_spec("xllamacpp") is None:
        raise StartError(
            "engine", "no llama-server on PATH and no embedded one; pip install 'corral[demo]', or " + GPU_BUILDS
        )
    return Engine(EMBEDDED)


def idle_card(settings: Settings, engine: Engine) -> str:
    """A sentence when a GPU is there that this engine cannot use, with the remedy; else empty."""
    names = () if settings.gpu == "none" else machine.card_names() or machine.cards()
    if not names or engine.devices():
        return ""
    kind = "the embedded engine is CPU only" if engine.embedded else f"{engine.path} is built without GPU support"
    found = f"this machine has a GPU ({', '.join(names)}) but {kind}"
    return f"{found}: models will run many times slower. To use it, {GPU_BUILDS}."
