"""From the setting `model` to a file, its name and its profile.

Owns: the file behind `demo` and `hf:...`, the served name, and what a model needs from us to answer well.
Never: starts an engine, reads settings by itself.
"""

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from infra import gguf_file, model_setting
from infra.errors import StartError
from infra.gguf_file import SPLIT
from infra.model_setting import DEMO, DEMO_PACKAGE, HfModel
from workers.llama import hub

DEMO_TEMPLATE = Path(__file__).with_name("demo.jinja")
# The demo model is not trained to stop after an answer: it goes on with the next question.
DEMO_STOP = ("\nQuestion:", "\nAnswer:")
# Claude Code's discovery keeps ids with this word; ids that start with `claude-` ignore its window setting.
NAME_PREFIX = "anthropic-"


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """What a model needs from us: a template in place of its own, further stop words for each request, and the
    temperature for requests that name none."""

    chat_template_file: Path | None = None
    stop: tuple[str, ...] = ()
    temperature: float | None = None


def resolve(model: str, data_dir: Path) -> Path | HfModel:
    """The file to serve: assembled, found, or downloaded. Raises StartError that says what to do.

    An HfModel comes back when it is left to the engine to fetch it.
    """
    models_dir = data_dir / "models"
    wanted = model_setting.read(model)
    if wanted == DEMO:
        return _demo(models_dir)
    if isinstance(wanted, Path):
        return wanted
    found = hub.fetch(wanted, models_dir)
    if isinstance(found, Path):
        gguf_file.check(found)
    return found


def served_name(path: Path | HfModel, model_name: str) -> str:
    """The id under which clients see the model: `model_name`, else from the file; always `anthropic-...`."""
    name = model_name or (path.repo.rpartition("/")[2] if isinstance(path, HfModel) else _stem(path))
    safe = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "model"
    return safe if "anthropic" in safe else NAME_PREFIX + safe


def profile(path: Path | HfModel, is_demo: bool) -> ModelProfile:
    """The demo model is a base model without a template of its own; any other model brings its own."""
    if is_demo and isinstance(path, Path):
        return ModelProfile(DEMO_TEMPLATE, DEMO_STOP, temperature=0.0)
    return ModelProfile()


def _stem(path: Path) -> str:
    split = SPLIT.match(path.name)
    return split["stem"] if split else path.stem


def _demo(models_dir: Path) -> Path:
    package = import_module(DEMO_PACKAGE)
    target = models_dir / str(package.MODEL_NAME)
    # It only gets this name whole and verified, so its size is check enough.
    size = sum(part.stat().st_size for part in package.chunk_paths())
    if not (target.is_file() and target.stat().st_size == size):
        _assemble(package.assemble, target, size)
    return target


def _assemble(assemble: Callable[..., object], target: Path, size: int) -> None:
    """Several workers may do this at once: each writes a file of its own; the last rename wins, with equal bytes."""
    own = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        assemble(own, overwrite=True)
        own.replace(target)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = f"no space left for {size // 2**20} MB" if full else error.strerror or str(error)
        raise StartError("model", f"the demo model cannot be put into {target.parent}: {reason}") from None
    except ValueError:
        raise StartError(
            "model", f"the demo package is damaged: pip install --force-reinstall {DEMO_PACKAGE}"
        ) from None
    finally:
        own.unlink(missing_ok=True)
