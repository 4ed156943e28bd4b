"""The embedded engine's flags, on the library's own parameters, and its exit codes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import xllamacpp

from infra.config import Settings
from workers.llama import command, embedded
from workers.llama.command import Engine
from workers.llama.embedded import UsageError, parameters, parse
from workers.llama.model import DEMO_TEMPLATE, ModelProfile

pytestmark = pytest.mark.unit

# A value that the flag takes, where it is not a number.
SAMPLES = {
    "-fa": "on",
    "--flash-attn": "auto",
    "-ctk": "q8_0",
    "--spec-type": "ngram-simple,ngram-mod",
    "--cache-type-k": "f16",
    "-ctv": "q4_0",
    "--cache-type-v": "bf16",
    "-lm": "mmap",
    "--load-mode": "none",
    "--reasoning-format": "deepseek-legacy",
    "--rope-scaling": "yarn",
    "--chat-template-file": str(DEMO_TEMPLATE),
    "--chat-template-kwargs": '{"enable_thinking": false, "effort": "low"}',
}


def read(target: str, source: Any) -> Any:
    for step in target.split("."):
        source = getattr(source, step)
    return source


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "workers.llama.embedded", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"LLAMA_API_KEY": "k"},
    )


def test_what_corral_writes_is_what_the_library_is_told() -> None:
    settings = Settings(slots=3, context_tokens=1024, threads=2, engine_args="-ctk q8_0 -fa on -ngl all")
    line = command.command(Engine("embedded", "", ()), settings, Path("/m.gguf"), 4711, ModelProfile(DEMO_TEMPLATE))
    told = parameters(parse(line), "secret")
    assert (told.model.path, told.port, list(told.hostnames)) == ("/m.gguf", 4711, ["127.0.0.1"])
    assert (told.n_parallel, told.n_ctx, told.kv_unified, told.cache_ram_mib) == (3, 3072, False, 0)
    assert (told.n_ctx_checkpoints, told.checkpoint_min_step) == (8, 256)
    assert (told.cpuparams.n_threads, told.cpuparams_batch.n_threads, told.n_threads_http) == (2, 2, 14)
    assert (told.use_jinja, told.endpoint_metrics, told.endpoint_slots, told.ui) == (True, True, True, False)
    assert told.chat_template == DEMO_TEMPLATE.read_text()
    assert list(told.api_keys) == ["secret"]
    assert told.fit_params is False
    assert set(told.model_alias) == {"anthropic-m"}
    assert told.cache_type_k == xllamacpp.ggml_type.GGML_TYPE_Q8_0
    assert told.flash_attn_type == xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    assert told.n_gpu_layers == -2


@pytest.mark.parametrize("flag", sorted(embedded.WITH_VALUE))
def test_every_flag_with_a_value_reaches_a_parameter_that_the_library_has(flag: str) -> None:
    values = parse([flag, SAMPLES.get(flag, "3")])
    target = embedded.WITH_VALUE[flag][1]
    told = read(target, parameters(values, ""))
    expected = values[target]
    if isinstance(expected, float):
        assert told == pytest.approx(expected)
    else:
        assert (set(told) if isinstance(expected, set) else told) == expected


@pytest.mark.parametrize("flag", sorted(embedded.SWITCHES))
def test_every_switch_reaches_a_parameter_that_the_library_has(flag: str) -> None:
    target, expected = embedded.SWITCHES[flag]
    assert read(target, parameters(parse([flag]), "")) == expected


def test_a_later_flag_wins() -> None:
    assert parse(["-b", "1", "-b", "2"])["n_batch"] == 2
    assert parse(["--jinja", "--no-jinja"])["use_jinja"] is False


def test_the_folder_of_saved_slots_ends_as_the_library_needs_it(tmp_path: Path) -> None:
    assert parse(["--slot-save-path", str(tmp_path)])["slot_save_path"] == f"{tmp_path}/"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nope"], "--nope is not known"),
        (["loose"], "loose is not known"),
        (["-c"], "-c needs a value"),
        (["-c", "banana"], "-c: `banana` is not allowed"),
        (["-ctk", "q9"], "-ctk: `q9` is not allowed"),
        (["--chat-template-kwargs", "[1]"], "--chat-template-kwargs: .* is not allowed"),
        (["--rope-scale", "0"], "--rope-scale: `0` is not allowed"),
        (["--chat-template-file", "/no/such"], "/no/such: No such file"),
    ],
)
def test_a_wrong_flag_is_named(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(arguments)


def test_a_value_that_the_library_does_not_take_is_named() -> None:
    with pytest.raises(UsageError, match="n_ctx"):
        parameters({"n_ctx": 2**40}, "")
    with pytest.raises(UsageError, match="n_nothing"):
        parameters({"n_nothing": 1}, "")


def test_a_wrong_flag_ends_the_process_with_code_2_and_one_line() -> None:
    done = run("--nope")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: --nope is not known to the embedded engine; llama-server itself may take it\n"


def test_a_file_that_is_no_model_ends_the_process_with_code_1_and_says_so_last(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_text("not a model")
    done = run("-m", str(tmp_path / "a.gguf"), "--port", "1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: cannot serve {tmp_path}/a.gguf")
