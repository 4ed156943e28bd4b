"""The engine's command line and environment.

Owns: how an engine is run, the flags that Corral sets, the flags it refuses, and what the engine finds in its
environment.
Never: starts anything, reads settings by itself. The engine's key travels in the environment, never on the command
line, where every user of the machine could read it.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from infra import engine_options, engine_search, sizing
from infra.config import Settings
from infra.device import gpu_environment
from infra.engine_options import CHECKPOINTS
from infra.engine_search import EMBEDDED, LIBRARY
from infra.errors import ConfigError, StartError
from infra.model_setting import HfModel
from workers.llama.model import ModelProfile, served_name

# A kept-alive connection holds one of the engine's HTTP threads: two a slot (one may still be ending) and some for
# health, counting, saving and looking.
CONTROL_THREADS = 8
STEPS = 4  # a window holds so many old checkpoints; the base's and those of the last turn make up CHECKPOINTS

_ON_LOOPBACK = "Corral keeps the engine on a loopback port and key of its own"
_PINNED = "Corral pins conversations to slots and needs this as it is"
_LOG = "Corral keeps the engine's log in its data folder"
_EXITS = "it makes the engine print something and exit; run llama-server by hand for that"
OWNED: Mapping[str, str] = {
    flag: remedy
    for remedy, flags in {
        "use --model or CORRAL_MODEL": (
            "-m --model -mu --model-url -dr --docker-repo -hf -hfr --hf-repo -hff --hf-file -hfv -hfrv --hf-repo-v "
            "--models-dir --models-preset --models-max --models-autoload --no-models-autoload"
        ),
        "use --slots or CORRAL_SLOTS": "-np --parallel",
        "use --context or CORRAL_CONTEXT_TOKENS": "-c --ctx-size --kv-unified-per-slot",
        "use --threads or CORRAL_THREADS": "-t --threads -tb --threads-batch",
        "use CORRAL_MODEL_NAME": "-a --alias",
        _ON_LOOPBACK: (
            "--host --port --reuse-port --path --api-prefix --server-base --api-key --api-key-file --ssl-key-file "
            "--ssl-cert-file --threads-http --metrics --slots --no-slots --ui --no-ui --webui --no-webui"
        ),
        _PINNED: (
            "-kvu --kv-unified -no-kvu --no-kv-unified -cram --cache-ram --cache-idle-slots --no-cache-idle-slots "
            "--slot-save-path --no-cache-prompt -nocb --no-cont-batching --context-shift -sps --slot-prompt-similarity"
        ),
        "Corral sends chats, which need the engine's template": (
            "--jinja --no-jinja --embedding --embeddings --rerank --reranking --pooling"
        ),
        _LOG: "--log-disable --log-file",
        _EXITS: "-h --help --usage --version --license -cl --cache-list --completion-bash --list-devices",
    }.items()
    for flag in flags.split()
}


@dataclass(frozen=True, slots=True)
class Engine:
    """What serves the model: a llama-server binary, or the library that carries llama.cpp's own server."""

    kind: Literal["native", "embedded"]
    path: str
    argv_prefix: tuple[str, ...]


def choose_engine(settings: Settings) -> Engine:
    """The engine of these settings, and how it is run. Raises StartError with the remedy when there is none."""
    found = engine_search.find(settings)
    if found == EMBEDDED:
        return Engine("embedded", LIBRARY, (sys.executable, "-m", "workers.llama.embedded"))
    return Engine("native", found, (found,))


def command(
    engine: Engine, settings: Settings, model_path: Path | HfModel, port: int, profile: ModelProfile
) -> list[str]:
    """The whole command line. Raises ConfigError for `engine_args` that Corral owns and for numbers that are still
    `auto`, StartError for a model that this engine cannot fetch."""
    extra = engine_arguments(settings.engine_args)
    shape = sizing.shape(settings)
    threads = str(settings.threads or max(1, _cores() - 1))
    return [
        *engine.argv_prefix,
        *_model_arguments(engine, model_path),
        *("--alias", served_name(model_path, settings.model_name)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("-np", str(shape.engine_slots), "-c", str(shape.engine_slots * shape.context_tokens)),
        # One KV buffer per slot: a shared one drops idle slots, and when it overflows ends every running request.
        "--no-kv-unified",
        *("--cache-ram", "0"),
        # What cannot be cut back to an earlier token goes on from a checkpoint: `CHECKPOINTS` of them with this step
        # between old ones keep the end of the last turns and the end of the base, in any window (decision 0012).
        *("--ctx-checkpoints", str(CHECKPOINTS), "--checkpoint-min-step", str(shape.context_tokens // STEPS)),
        *("-t", threads, "-tb", threads, "--threads-http", str(2 * shape.engine_slots + CONTROL_THREADS)),
        *("--jinja", "--metrics", "--slots", "--no-webui"),
        *_store_arguments(settings),
        *(("--chat-template-file", str(profile.chat_template_file)) if profile.chat_template_file else ()),
        *(("--temp", str(profile.temperature)) if profile.temperature is not None else ()),
        *extra,
    ]


def engine_arguments(text: str) -> list[str]:
    """`engine_args` as a list. Raises ConfigError that names a flag which Corral sets itself."""
    arguments = engine_options.split(text)
    for argument in arguments:
        flag = _flag(argument)
        if flag in OWNED:
            raise ConfigError(f"engine_args: {flag} is not allowed here: {OWNED[flag]}")
    return arguments


def environment(settings: Settings, api_key: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What the engine is given of `environ`: without Corral's own secrets, with its cards and its key.

    LLAMA_ARG_* is taken out, because each is a flag that would pass by the check of `engine_args`.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith(("CORRAL_", "LLAMA_"))}
    return kept | gpu_environment(settings.gpu) | {"LLAMA_API_KEY": api_key}


def build(engine: Engine, reported: str) -> str:
    """The engine's build; the library does not report one of its own, so its version stands for it."""
    return f"{LIBRARY} {version(LIBRARY)}" if engine.kind == EMBEDDED else reported


def _model_arguments(engine: Engine, model_path: Path | HfModel) -> Sequence[str]:
    if isinstance(model_path, Path):
        return ("-m", str(model_path))
    if engine.kind == "embedded":
        raise StartError("model", "the embedded engine cannot download it: pip install '.[hf]' in Corral's folder")
    return ("-hf", model_path.reference)


def _store_arguments(settings: Settings) -> Sequence[str]:
    """Without its folder the engine would not start; that the folder is missing is told by whoever made it."""
    folder = settings.store_folder
    return ("--slot-save-path", str(folder)) if folder is not None and folder.is_dir() else ()


def _flag(argument: str) -> str:
    """As the engine reads it: it takes `--ctx_size` for `--ctx-size`."""
    name = argument.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
