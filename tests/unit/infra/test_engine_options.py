"""Flags of the engine that change what it needs."""

from pathlib import Path

import pytest

from infra import engine_options
from infra.engine_options import CHECKPOINTS, EngineOptions
from infra.errors import ConfigError

pytestmark = pytest.mark.unit


def test_without_flags_there_are_the_engines_defaults() -> None:
    assert engine_options.read("") == EngineOptions("f16", "f16", 512)


def test_the_flags_are_read_in_all_spellings_and_the_last_one_counts(tmp_path: Path) -> None:
    eyes = tmp_path / "eyes.gguf"
    eyes.touch()
    text = f'-ctk q4_0 --cache-type-k Q8_0 -ctv q5_1 --ubatch_size 1024 -fa off --swa-full -ngl 99 --mmproj "{eyes}"'
    read = engine_options.read(text)
    assert (read.key_type, read.value_type, read.batch_tokens) == ("q8_0", "q5_1", 1024)
    assert (read.whole_window, read.flash_attention, read.files, read.gpu_layers) == (True, False, (eyes,), 99)
    assert (read.elsewhere, read.checkpoints) == ("", CHECKPOINTS)
    assert engine_options.read("--ctx-checkpoints 0 -cms 512").checkpoints == 0


@pytest.mark.parametrize("text", ["--n-cpu-moe 20", "--cpu-moe", "-ot exps=CPU", "--no_kv_offload", "-dev none"])
def test_flags_that_keep_a_part_elsewhere_are_noticed(text: str) -> None:
    assert engine_options.read(text).elsewhere == text.split(maxsplit=1)[0].replace("_", "-")


def test_a_kv_type_that_nobody_knows_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"^engine_args: KV type q9_9 is not known; choose one of .*q8_0"):
        engine_options.read("-ctk q9_9")
    with pytest.raises(ConfigError, match=r"^engine_args: no closing quotation"):
        engine_options.read('-ctk "q8_0')


def test_a_row_is_made_of_whole_blocks() -> None:
    assert engine_options.row_bytes("f16", 1000) == 2000
    assert engine_options.row_bytes("q8_0", 64) == 68
    assert engine_options.row_bytes("q4_0", 33) == 36
