"""What the setting `engine_args` means for memory.

Owns: the few llama-server flags that change what an engine needs, or where it keeps it.
Never: judges a flag that Corral owns; `workers.llama.command` does.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from infra.errors import ConfigError
from infra.gguf_file import BLOCKS

# Name of a KV type: its code in the file format, which knows how many values a block holds, in how many bytes.
KV_TYPES = {
    "f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "iq4_nl": 20,
}  # fmt: skip
BATCH_TOKENS = 512  # llama-server's default of --ubatch-size
CHECKPOINTS = 8  # Corral's, see decision 0012; llama-server's own default is 32
# Each keeps a part of the model or its cache off the device, or chooses the device itself.
ELSEWHERE = (
    *("-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"),
    *("-nkvo", "--no-kv-offload", "-dev", "--device"),
)
OFF = frozenset({"off", "0", "false"})


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """`batch_tokens` go through the model at once. `whole_window`: sliding-window layers keep everything too.

    At most `checkpoints` copies of windows and states are kept for each slot. `files` are further models that are
    loaded beside. `elsewhere` is the flag that moves a part off the device, else empty; `gpu_layers` a number of layers
    on it, None for all.
    """

    key_type: str = "f16"
    value_type: str = "f16"
    batch_tokens: int = BATCH_TOKENS
    whole_window: bool = False
    flash_attention: bool = True
    checkpoints: int = CHECKPOINTS
    files: tuple[Path, ...] = ()
    elsewhere: str = ""
    gpu_layers: int | None = None


def split(text: str) -> list[str]:
    """`engine_args` as a list. Raises ConfigError when a quote is left open."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"engine_args: {str(error).lower()}") from None


def read(text: str) -> EngineOptions:
    """The options in `engine_args`; a later flag wins. Raises ConfigError for a KV type that is not known."""
    arguments = split(text)
    given = {_as_engine_reads(flag): value for flag, value in pairwise([*arguments, ""])}
    checkpoints = _number(_value(given, "-ctxcp --ctx-checkpoints --swa-checkpoints"))
    return EngineOptions(
        key_type=_kv_type(_value(given, "-ctk --cache-type-k")),
        value_type=_kv_type(_value(given, "-ctv --cache-type-v")),
        batch_tokens=_number(_value(given, "-ub --ubatch-size")) or BATCH_TOKENS,
        whole_window="--swa-full" in given,
        flash_attention=_value(given, "-fa --flash-attn") not in OFF,
        checkpoints=CHECKPOINTS if checkpoints is None else checkpoints,
        files=_models(arguments),
        elsewhere=next((flag for flag in given if flag in ELSEWHERE), ""),
        gpu_layers=_number(_value(given, "-ngl --gpu-layers --n-gpu-layers")),
    )


def row_bytes(kv_type: str, numbers: int) -> int:
    """Bytes of so many numbers in a KV type; whole blocks."""
    values, size = BLOCKS[KV_TYPES[kv_type]]
    return -(-numbers // values) * size


def _as_engine_reads(flag: str) -> str:
    return flag.replace("_", "-") if flag.startswith("--") else flag


def _value(given: dict[str, str], names: str) -> str:
    return next((given[name] for name in reversed(given) if name in names.split()), "").lower()


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _kv_type(text: str) -> str:
    if text and text not in KV_TYPES:
        raise ConfigError(f"engine_args: KV type {text} is not known; choose one of {', '.join(KV_TYPES)}")
    return text or "f16"


def _models(arguments: Sequence[str]) -> tuple[Path, ...]:
    paths = (Path(argument).expanduser() for argument in arguments if argument.endswith(".gguf"))
    return tuple(path for path in paths if path.is_file())
