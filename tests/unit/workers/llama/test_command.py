"""The engine's command line: what Corral sets, what it refuses, and what the engine finds in its environment."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.config import Settings
from infra.errors import ConfigError, StartError
from infra.model_setting import HfModel
from workers.llama import command
from workers.llama.command import Engine, choose_engine, engine_arguments
from workers.llama.model import ModelProfile

pytestmark = pytest.mark.unit

NATIVE = Engine("native", "/usr/bin/llama-server", ("/usr/bin/llama-server",))
EMBEDDED = Engine("embedded", "x", (sys.executable, "-m", "workers.llama.embedded"))
MODEL = Path("/models/Qwen3-8B.gguf")


def line(settings: Settings, engine: Engine = NATIVE, profile: ModelProfile | None = None) -> list[str]:
    return command.command(engine, settings, MODEL, 4711, profile or ModelProfile())


def value(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def program(folder: Path, name: str = "llama-server") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_context_of_all_slots_is_asked_for_and_never_shared() -> None:
    arguments = line(Settings(slots=3, context_tokens=1000))
    assert (value(arguments, "-np"), value(arguments, "-c")) == ("3", "3000")
    assert "--no-kv-unified" in arguments


def test_scratch_slots_come_on_top_and_an_auto_that_nobody_resolved_is_refused() -> None:
    arguments = line(Settings(slots=3, context_tokens=1000, scratch_slots=2))
    assert (value(arguments, "-np"), value(arguments, "-c")) == ("5", "5000")
    with pytest.raises(ConfigError, match=r"^--slots auto: the numbers are not known yet"):
        line(Settings(slots="auto"))


def test_checkpoints_are_few_and_their_step_grows_with_the_window_unless_the_user_sets_them() -> None:
    for window in (8192, 131072):
        arguments = line(Settings(slots=2, context_tokens=window))
        step = int(value(arguments, "--checkpoint-min-step"))
        # The base's checkpoint, those a step apart in the whole window, and the three that a turn makes: all have room.
        assert 1 + window // step + 3 <= int(value(arguments, "--ctx-checkpoints"))
    assert line(Settings(engine_args="-ctxcp 3"))[-2:] == ["-ctxcp", "3"]


def test_the_engine_listens_on_loopback_with_threads_for_all_slots_and_control() -> None:
    arguments = line(Settings(slots=10))
    assert (value(arguments, "--host"), value(arguments, "--port")) == ("127.0.0.1", "4711")
    assert int(value(arguments, "--threads-http")) > 10


def test_threads_are_as_set_else_one_core_is_left_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert value(line(Settings(threads=7)), "-t") == "7"
    for cores, expected in ((8, "7"), (2, "1"), (1, "1")):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        assert value(line(Settings()), "-t") == value(line(Settings()), "-tb") == expected


def test_the_model_is_served_under_its_name() -> None:
    assert value(line(Settings()), "--alias") == "anthropic-qwen3-8b"
    assert value(line(Settings(model_name="Mine")), "--alias") == "anthropic-mine"


def test_the_profile_brings_its_template() -> None:
    assert "--chat-template-file" not in line(Settings())
    with_template = line(Settings(), profile=ModelProfile(Path("/t.jinja")))
    assert value(with_template, "--chat-template-file") == "/t.jinja"


def test_the_users_own_flags_come_last_and_whole() -> None:
    arguments = line(Settings(engine_args="-ngl 99 --chat-template-kwargs '{\"a\": 1}' -ot '.*=CPU'"))
    assert arguments[-6:] == ["-ngl", "99", "--chat-template-kwargs", '{"a": 1}', "-ot", ".*=CPU"]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("-m x.gguf", "--model"),
        ("--model=x.gguf", "--model"),
        ("-hf a/b", "--model"),
        ("-np 2", "--slots"),
        ("--parallel 2", "--slots"),
        ("-c 4096", "--context"),
        ("--ctx-size=4096", "--context"),
        ("--ctx_size 4096", "--context"),
        ("-ngl 3 -t 4", "--threads"),
        ("-a name", "CORRAL_MODEL_NAME"),
        ("--host 0.0.0.0", "loopback"),
        ("--port 1", "loopback"),
        ("--api-key k", "key"),
        ("--slot-save-path /tmp", "slots"),
        ("-kvu", "slots"),
        ("--no-kv-unified", "slots"),
        ("--version", "by hand"),
    ],
)
def test_a_flag_that_corral_owns_is_refused_with_what_to_use(text: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=r"^engine_args: --?[a-z-]+ is not allowed here: ") as caught:
        engine_arguments(text)
    assert remedy in caught.value.message


@given(st.sampled_from(sorted(command.OWNED)), st.sampled_from(["{}", "{}=1", "-ngl 1 {} 2"]))
def test_no_owned_flag_passes_in_any_form(flag: str, form: str) -> None:
    with pytest.raises(ConfigError, match="not allowed here"):
        engine_arguments(form.format(flag))


def test_every_flag_that_corral_sets_is_owned_but_for_the_template_and_the_checkpoints() -> None:
    arguments = line(Settings(), profile=ModelProfile(Path("/t.jinja")))
    flags = {argument for argument in arguments if argument.startswith("-")}
    assert flags - set(command.OWNED) == {"--chat-template-file", "--ctx-checkpoints", "--checkpoint-min-step"}


def test_an_open_quote_is_an_error_of_the_setting() -> None:
    with pytest.raises(ConfigError, match="engine_args: no closing quotation"):
        engine_arguments("-ot 'x")


def test_a_model_of_the_hub_is_left_to_llama_server_and_refused_to_the_embedded_engine() -> None:
    model = HfModel("unsloth/Qwen3-8B-GGUF", "Q4_K_M")
    arguments = command.command(NATIVE, Settings(), model, 1, ModelProfile())
    assert value(arguments, "-hf") == "unsloth/Qwen3-8B-GGUF:Q4_K_M"
    assert "-m" not in arguments
    with pytest.raises(StartError, match=r"model: .*\.\[hf\]"):
        command.command(EMBEDDED, Settings(), model, 1, ModelProfile())


def test_the_named_binary_is_taken(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "my-server")
    assert choose_engine(Settings(llama_server=str(path))) == Engine("native", str(path), (str(path),))


def test_llama_server_on_path_wins_over_the_embedded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(path.parent))
    assert choose_engine(Settings()).path == str(path)
    assert choose_engine(Settings(llama_server="embedded")).kind == "embedded"


def test_the_environment_holds_the_key_and_none_of_our_secrets() -> None:
    environ = {"PATH": "/bin", "CORRAL_API_KEYS": "a:b", "LLAMA_ARG_CTX_SIZE": "1", "CUDA_VISIBLE_DEVICES": "3"}
    given_to_engine = command.environment(Settings(), "key", environ)
    assert given_to_engine == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3", "LLAMA_API_KEY": "key"}
    assert command.environment(Settings(gpu="1"), "key", environ)["CUDA_VISIBLE_DEVICES"] == "1"
