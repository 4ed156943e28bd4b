"""Models from the Hugging Face hub: `hf:REPO[:QUANT]`.

Owns: which files of a repository are the model asked for, and their download into the data folder.
Never: needed for a local file. The library is optional; without it llama-server fetches the model by itself.
"""

import re
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import structlog

from infra.errors import StartError
from infra.gguf_file import SPLIT
from infra.model_setting import HfModel

LIBRARY = "huggingface_hub"
# The one that llama-server takes too, then what comes nearest in size.
PREFERRED = ("Q4_K_M", "Q4_K_S", "IQ4_XS", "MXFP4", "Q4_0", "Q8_0")
NOT_MODELS = re.compile(r"mmproj|imatrix|(^|[-._/])mtp([-._/]|$)", re.IGNORECASE)
QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|NVFP4\w*|BF16|F16|F32))(?=[-._/]|$)", re.IGNORECASE
)

log = structlog.get_logger()


def fetch(model: HfModel, models_dir: Path) -> Path | HfModel:
    """The first file of the model, downloaded into `models_dir` when it is not there yet.

    Without the library the model itself comes back, for the engine to fetch. Without the network what was downloaded
    before is served. Raises StartError.
    """
    if find_spec(LIBRARY) is None:
        return model
    target = models_dir / model.repo.replace("/", "--")
    try:
        names = _ask(model, lambda hub: hub.HfApi().list_repo_files(model.repo))
    except StartError as error:
        # A file gets its name only when it is whole.
        there = sorted(str(path.relative_to(target)) for path in target.rglob("*.gguf"))
        if not there:
            raise
        log.warning("model.not_asked_for", repo=model.repo, reason=error.message)
        return target / choose(there, model)[0]
    files = choose(names, model)
    for name in files:
        log.info("model.download", repo=model.repo, file=name, folder=str(target))
        _ask(model, lambda hub, name=name: hub.hf_hub_download(model.repo, name, local_dir=target))
    return target / files[0]


def choose(names: Sequence[str], model: HfModel) -> list[str]:
    """The files of the quantisation asked for, in order of their parts. Raises StartError that lists what there is."""
    found = [name for name in names if name.lower().endswith(".gguf") and not NOT_MODELS.search(name)]
    if not found:
        raise StartError("model", f"{model.repo} holds no GGUF file; look for a repository that does")
    for quant in (model.quant,) if model.quant else PREFERRED:
        matching = [name for name in found if _is_of(name, quant)]
        if matching:
            return _whole(min(matching, key=lambda name: (len(name), name)), found)
    if model.quant:
        there = sorted({match[-1].upper() for name in found if (match := QUANT.findall(name))})
        raise StartError("model", f"{model.repo} has no {model.quant}; it has {', '.join(there) or 'one model'}")
    return _whole(found[0], found)


def _is_of(name: str, quant: str) -> bool:
    return re.search(rf"(?:^|[-._/]){re.escape(quant)}(?=[-./]|$)", name, re.IGNORECASE) is not None


def _whole(name: str, names: Sequence[str]) -> list[str]:
    folder, _, base = name.rpartition("/")
    match = SPLIT.match(base)
    if match is None:
        return [name]
    count = int(match["parts"])
    start = f"{folder}/{match['stem']}" if folder else match["stem"]
    wanted = [f"{start}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    missing = [part for part in wanted if part not in names]
    if missing:
        raise StartError("model", f"the repository lacks {missing[0]}, one of {count} parts")
    return wanted


def _ask(model: HfModel, question: Any) -> Any:
    try:
        return question(import_module(LIBRARY))
    # The border to a vendor's library: whatever it raises, the model could not be fetched.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StartError("model", f"{model.reference} cannot be downloaded: {reason}") from None
