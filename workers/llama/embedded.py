"""The embedded engine: llama.cpp's own HTTP server inside this process, from a wheel.

Owns: how a subset of llama-server's flags maps onto the library's parameters, and the life of this child process.
Never: accepts a flag that it does not understand. Run as `python -m workers.llama.embedded ARGS`; it serves until
SIGTERM or SIGINT, then exits with 0. Every flag that `workers.llama.command` writes is in the subset.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

USAGE_ERROR, LOAD_ERROR = 2, 1
LOGGING_S = 0.2  # more than a line of log needs to be written
KEY_VARIABLE = "LLAMA_API_KEY"

# What a flag's value becomes, and the parameters that it sets; a dot goes into a part of the parameters.
Convert = Callable[[str], Any]


class UsageError(Exception):
    """A flag or its value cannot be taken; the message names it."""


def _layers(value: str) -> int:
    # The library's own numbers for these two words.
    return {"auto": -1, "all": -2}[value] if value in ("auto", "all") else int(value)


def _file(value: str) -> str:
    return Path(value).read_text(encoding="utf-8")


def _as_json_texts(value: str) -> dict[str, str]:
    """The library takes each value of the object as JSON again."""
    return {name: json.dumps(inner) for name, inner in json.loads(value).items()}


def _member(enumeration: str, prefix: str, words: Mapping[str, str] | None = None) -> Convert:
    """Reads the enumeration's member by its name, so that its number may change with the library's version."""

    def convert(value: str) -> Any:
        name = (words or {}).get(value.lower(), value.upper().replace("-", "_"))
        return getattr(_library(), enumeration)[prefix + name]

    return convert


_ON_OFF = {"on": "ENABLED", "1": "ENABLED", "true": "ENABLED", "off": "DISABLED", "0": "DISABLED", "false": "DISABLED"}
_kv_type = _member("ggml_type", "GGML_TYPE_")

_speculation = _member("common_speculative_type", "COMMON_SPECULATIVE_TYPE_")


def _speculations(value: str) -> list[Any]:
    return [_speculation(one) for one in value.split(",")]


WITH_VALUE: Mapping[str, tuple[Convert, str]] = {
    flag: (convert, target)
    for flags, convert, target in (
        ("-m --model", str, "model.path"),
        ("-a --alias", lambda value: set(value.split(",")), "model_alias"),
        ("--host", lambda value: [value], "hostnames"),
        ("--port", int, "port"),
        ("-np --parallel", int, "n_parallel"),
        ("-c --ctx-size", int, "n_ctx"),
        ("-cram --cache-ram", int, "cache_ram_mib"),
        ("-t --threads", int, "cpuparams.n_threads"),
        ("-tb --threads-batch", int, "cpuparams_batch.n_threads"),
        ("--threads-http", int, "n_threads_http"),
        ("--poll", int, "cpuparams.poll"),
        ("-b --batch-size", int, "n_batch"),
        ("-ub --ubatch-size", int, "n_ubatch"),
        ("-n --predict --n-predict", int, "n_predict"),
        ("--keep", int, "n_keep"),
        ("-fa --flash-attn", _member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_", _ON_OFF), "flash_attn_type"),
        ("-ctk --cache-type-k", _kv_type, "cache_type_k"),
        ("-ctv --cache-type-v", _kv_type, "cache_type_v"),
        ("-ctxcp --ctx-checkpoints --swa-checkpoints", int, "n_ctx_checkpoints"),
        ("-cms --checkpoint-min-step", int, "checkpoint_min_step"),
        ("--cache-reuse", int, "n_cache_reuse"),
        ("-mm --mmproj", str, "mmproj.path"),
        ("-ngl --gpu-layers --n-gpu-layers", _layers, "n_gpu_layers"),
        ("-mg --main-gpu", int, "main_gpu"),
        ("--chat-template", str, "chat_template"),
        ("--chat-template-file", _file, "chat_template"),
        ("--chat-template-kwargs", _as_json_texts, "default_template_kwargs"),
        ("-lm --load-mode", _member("llama_load_mode", "LLAMA_LOAD_MODE_"), "load_mode"),
        ("--reasoning-format", _member("common_reasoning_format", "COMMON_REASONING_FORMAT_"), "reasoning_format"),
        ("--reasoning-budget", int, "sampling.reasoning_budget_tokens"),
        ("--slot-save-path", lambda value: str(Path(value).absolute()) + "/", "slot_save_path"),
        ("--rope-scaling", _member("llama_rope_scaling_type", "LLAMA_ROPE_SCALING_TYPE_"), "rope_scaling_type"),
        ("--rope-scale", lambda value: 1 / float(value), "rope_freq_scale"),
        ("--rope-freq-base", float, "rope_freq_base"),
        ("--rope-freq-scale", float, "rope_freq_scale"),
        ("--yarn-orig-ctx", int, "yarn_orig_ctx"),
        ("--yarn-ext-factor", float, "yarn_ext_factor"),
        ("--yarn-attn-factor", float, "yarn_attn_factor"),
        ("--sse-ping-interval", int, "sse_ping_interval"),
        ("-to --timeout", int, "timeout_read"),
        ("-s --seed", int, "sampling.seed"),
        ("--temp --temperature", float, "sampling.temp"),
        ("--top-k", int, "sampling.top_k"),
        ("--top-p", float, "sampling.top_p"),
        ("--min-p", float, "sampling.min_p"),
        ("--repeat-penalty", float, "sampling.penalty_repeat"),
        ("-lv --verbosity --log-verbosity", int, "verbosity"),
        ("--spec-type", _speculations, "speculative.types"),
    )
    for flag in flags.split()
}
SWITCHES: Mapping[str, tuple[str, bool]] = {
    flag: (target, value)
    for flags, target, value in (
        ("-kvu --kv-unified", "kv_unified", True),
        ("-no-kvu --no-kv-unified", "kv_unified", False),
        ("--jinja", "use_jinja", True),
        ("--no-jinja", "use_jinja", False),
        ("--metrics", "endpoint_metrics", True),
        ("--props", "endpoint_props", True),
        ("--slots", "endpoint_slots", True),
        ("--no-slots", "endpoint_slots", False),
        ("--ui --webui", "ui", True),
        ("--no-ui --no-webui", "ui", False),
        ("--warmup", "warmup", True),
        ("--no-warmup", "warmup", False),
        ("--swa-full", "swa_full", True),
        ("-nkvo --no-kv-offload", "no_kv_offload", True),
        ("--no-mmproj", "no_mmproj", True),
        ("--no-mmproj-offload", "mmproj_use_gpu", False),
        ("--check-tensors", "check_tensors", True),
        ("--offline", "offline", True),
    )
    for flag in flags.split()
}
# Corral's own defaults where the library's would change what was asked for: it would fit context and layers to the
# memory that it finds, keep prompts in 8 GiB of host memory, and share one KV buffer among the slots.
DEFAULTS: Mapping[str, Any] = {"fit_params": False, "cache_ram_mib": 0, "kv_unified": False, "use_jinja": True}


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Flags to parameter paths and values; a later flag wins. Raises UsageError that names the flag."""
    values = dict(DEFAULTS)
    waiting = iter(arguments)
    for argument in waiting:
        flag = argument.replace("_", "-") if argument.startswith("--") else argument
        if flag in SWITCHES:
            target, switched = SWITCHES[flag]
            values[target] = switched
        elif flag in WITH_VALUE:
            convert, target = WITH_VALUE[flag]
            values[target] = _value(flag, waiting, convert)
        else:
            raise UsageError(f"{argument} is not known to the embedded engine; llama-server itself may take it")
    return values


def parameters(values: Mapping[str, Any], api_key: str) -> Any:
    """The library's parameters. Raises UsageError for a value that the library does not take."""
    result = _library().CommonParams()
    for target, value in values.items():
        *path, name = target.split(".")
        part = result
        for step in path:
            part = getattr(part, step)
        try:
            setattr(part, name, value)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"{target}: {error}") from None
    if api_key:
        result.api_keys = [api_key]
    return result


def main(arguments: Sequence[str]) -> NoReturn:
    """Loads and serves. Exit codes: 0 stopped, 1 the model cannot be served, 2 a wrong flag."""
    # Loading holds the interpreter lock, so no handler would run: until it is done, a signal simply ends the process.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        wanted = parameters(parse(arguments), os.environ.pop(KEY_VARIABLE, ""))
    except UsageError as error:
        _end(USAGE_ERROR, f"error: {error}")
    try:
        # Kept by name: the library stops serving when nothing refers to the server any more.
        server = _library().Server(wanted)
    except RuntimeError:
        _end(LOAD_ERROR, f"error: cannot serve {wanted.model.path} on port {wanted.port}; the lines above say why")
    _wait_for_signal(server)
    _end(0)


def _value(flag: str, waiting: Iterator[str], convert: Convert) -> Any:
    text = next(waiting, None)
    if text is None:
        raise UsageError(f"{flag} needs a value")
    try:
        return convert(text)
    except (AttributeError, ValueError, KeyError, ZeroDivisionError):
        raise UsageError(f"{flag}: `{text}` is not allowed") from None
    except OSError as error:
        raise UsageError(f"{flag}: {text}: {error.strerror}") from None


def _wait_for_signal(_server: Any) -> None:
    """The library's threads may be the ones that get the signal, so it comes to this one through a pipe."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    select.select([reader], [], [])


def _end(code: int, message: str = "") -> NoReturn:
    """Soon: the library's own threads may hang, and there is nothing left to save. `message` is the last line."""
    if message:
        # The library logs in a thread of its own and tells nobody when that is through.
        time.sleep(LOGGING_S)
        own = os.dup(sys.stderr.fileno())
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        os.write(own, f"{message}\n".encode())
    os._exit(code)


def _library() -> Any:
    return import_module("xllamacpp")


if __name__ == "__main__":
    main(sys.argv[1:])
