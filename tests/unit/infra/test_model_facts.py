"""What metadata mean for memory, by the kinds of models there are."""

from collections.abc import Callable
from pathlib import Path

import pytest

from infra import model_facts
from infra.errors import StartError
from infra.gguf_file import Header, Value
from infra.gguf_plan import restorable
from infra.model_facts import Cache, Facts
from tests.doubles.scripted_model import KV_HEAVY, TEXT_ONLY, Script

pytestmark = pytest.mark.unit

BASE: dict[str, Value] = {
    "block_count": 4,
    "context_length": 65536,
    "embedding_length": 1024,
    "feed_forward_length": 4096,
    "attention.head_count": 16,
    "attention.head_count_kv": 4,
}


def facts(architecture: str, **changes: Value) -> Facts:
    """`changes` are keys with `_` for `.` after the first word, as in `attention_key_length`."""
    renamed = {name.replace("_", ".", 1) if name.split("_")[0] in GROUPS else name: v for name, v in changes.items()}
    values = {f"{architecture}.{name}": value for name, value in (BASE | renamed).items()}
    return model_facts.facts(
        Header("model", 1, 0, {"general.architecture": architecture, **values}, {"tokenizer.ggml.tokens": 32000}),
        weights_bytes=7,
        name="m.gguf",
    )


GROUPS = {"attention", "ssm", "shortconv", "wkv", "kda"}


def test_head_sizes_come_from_the_width_unless_they_are_given() -> None:
    assert facts("llama").caches == (Cache(256, 256),) * 4
    assert facts("qwen3", attention_key_length=128, attention_value_length=64).caches == (Cache(512, 256),) * 4
    assert facts("llama", attention_head_count_kv=(4, 2, 1, 0)).caches == (
        Cache(256, 256),
        Cache(128, 128),
        Cache(64, 64),
    )
    found = facts("llama")
    assert (found.trained_tokens, found.vocabulary, found.weights_bytes) == (65536, 32000, 7)


@pytest.mark.parametrize(
    ("architecture", "pattern", "windows"),
    [
        ("gemma2", None, [512, 0, 512, 0]),
        ("gpt-oss", None, [512, 0, 512, 0]),
        ("exaone4", None, [512, 512, 512, 0]),
        ("gemma3", 2, [512, 0, 512, 0]),
        ("gemma4", (True, True, False, True), [512, 512, 0, 512]),
        ("llama", None, [0, 0, 0, 0]),
        ("never-heard-of", None, [0, 0, 0, 0]),
    ],
)
def test_layers_with_a_window_are_told_by_the_pattern_or_by_what_the_engine_assumes(
    architecture: str, pattern: Value | None, windows: list[int]
) -> None:
    given = {} if pattern is None else {"attention_sliding_window_pattern": pattern}
    found = facts(architecture, attention_sliding_window=512, **given)
    assert [cache.window for cache in found.caches] == windows
    assert restorable(found) is not any(windows)


def test_windowed_layers_may_have_heads_of_their_own_and_late_ones_no_cache() -> None:
    found = facts(
        "gemma4",
        attention_sliding_window=512,
        attention_sliding_window_pattern=(1, 0, 1, 1),
        attention_key_length=512,
        attention_value_length=512,
        attention_key_length_swa=256,
        attention_value_length_swa=256,
        attention_shared_kv_layers=1,
    )
    assert found.caches == (Cache(1024, 1024, 512), Cache(2048, 2048), Cache(1024, 1024, 512))


def test_latent_attention_keeps_one_vector() -> None:
    mla = {"attention_head_count_kv": 1, "attention_key_length": 576, "attention_value_length": 512}
    found = facts("deepseek2", **mla, attention_key_length_mla=192, attention_value_length_mla=128)
    assert found.caches == (Cache(576, 0),) * 4


def test_every_fourth_layer_of_a_gated_delta_net_attends_and_the_others_keep_a_state() -> None:
    ssm = {"ssm_conv_kernel": 4, "ssm_inner_size": 2048, "ssm_state_size": 128, "ssm_group_count": 16}
    found = facts("qwen3next", **ssm)
    assert found.caches == (Cache(256, 256),)
    assert found.state_bytes == 3 * 4 * (3 * (2048 + 2 * 16 * 128) + 2048 * 128)
    assert not restorable(found)
    assert len(facts("qwen35", full_attention_interval=2, **ssm).caches) == 2


def test_a_layer_without_heads_for_keys_is_recurrent() -> None:
    found = facts("lfm2", attention_head_count_kv=(0, 4, 0, 4), shortconv_l_cache=3)
    assert (len(found.caches), found.state_bytes) == (2, 2 * 4 * 1024 * 2)
    mamba = facts(
        "nemotron_h", attention_head_count_kv=(0, 0, 4, 0), feed_forward_length=(0, 512, 0, 0), ssm_state_size=16
    )
    assert mamba.state_bytes == 0
    ssm = {"ssm_state_size": 16, "ssm_inner_size": 64, "ssm_conv_kernel": 1}
    mixed = facts("nemotron_h", attention_head_count_kv=(0, 0, 4, 0), feed_forward_length=(0, 512, 0, 0), **ssm)
    assert (len(mixed.caches), mixed.state_bytes) == (1, 2 * 4 * 16 * 64)


def test_attention_and_state_may_stand_side_by_side() -> None:
    found = facts("falcon-h1", ssm_state_size=16, ssm_inner_size=64, ssm_conv_kernel=1)
    assert (len(found.caches), found.state_bytes) == (4, 4 * 4 * 16 * 64)


def test_rwkv_and_kimi_keep_their_own_kinds_of_state() -> None:
    assert facts("rwkv7", attention_head_count_kv=0, wkv_head_size=64).state_bytes == 4 * 4 * 1024 * (2 + 64)
    found = facts("kimi-linear", attention_head_count_kv=(0, 0, 0, 1), kda_head_dim=128, ssm_conv_kernel=4)
    assert found.state_bytes == 3 * 4 * (3 * 3 * 16 * 128 + 16 * 128 * 128)


def test_layers_that_only_predict_ahead_are_not_counted() -> None:
    assert len(facts("glm4moe", nextn_predict_layers=1).caches) == 3


def test_a_file_that_does_not_say_is_named_with_the_key() -> None:
    with pytest.raises(StartError, match=r"m.gguf does not say llama.context_length"):
        facts("llama", context_length=0)


@pytest.mark.parametrize(("script", "cache", "layers"), [(TEXT_ONLY, Cache(32, 32), 1), (KV_HEAVY, Cache(512, 512), 8)])
def test_scripted_models_are_read(
    script: Script, cache: Cache, layers: int, model_path: Callable[[Script], Path]
) -> None:
    path = model_path(script)
    found = model_facts.read(path)
    assert (found.caches, found.trained_tokens) == ((cache,) * layers, 262144)
    assert found.weights_bytes == path.stat().st_size
    assert restorable(found)
