"""Which engine serves a model here: one search for the command line, which tells of it, and the worker, which runs it.

Owns: the order (setting, PATH, the embedded one), and where to get an engine.
Never: runs one.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path

from infra.config import Settings
from infra.errors import StartError

EMBEDDED = "embedded"
LIBRARY = "xllamacpp"  # carries llama.cpp's own server
PROGRAM = "llama-server"
GPU_BUILDS = (
    "get a GPU build of llama-server: a release from https://github.com/ggml-org/llama.cpp/releases, "
    "`brew install llama.cpp`, `conda install -c conda-forge llama.cpp`, or build llama.cpp with "
    "`cmake -B build -DGGML_CUDA=ON` (AMD: -DGGML_HIP=ON); then put it on PATH or set CORRAL_LLAMA_SERVER"
)


def find(settings: Settings) -> str:
    """The path of the binary, or `embedded`. Raises StartError with the remedy."""
    named = settings.llama_server
    if named and named != EMBEDDED:
        path = shutil.which(Path(named).expanduser())
        if path is None:
            raise StartError(
                "engine", f"CORRAL_LLAMA_SERVER={named}: not a program that can be run; name a llama-server binary"
            )
        return str(path)
    on_path = None if named else shutil.which(PROGRAM)
    if on_path:
        return on_path
    if find_spec(LIBRARY) is None:
        where = "the embedded engine is not installed" if named else "no llama-server on PATH and no embedded one"
        raise StartError("engine", f"{where}; pip install '.[demo]' in Corral's folder (CPU only), or {GPU_BUILDS}")
    return EMBEDDED
