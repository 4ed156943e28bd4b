"""The forms of the setting `model`."""

from pathlib import Path

import pytest

from infra.errors import StartError
from infra.model_setting import DEMO, HfModel, read

pytestmark = pytest.mark.unit


def test_the_demo_model_is_itself() -> None:
    assert read("demo") == DEMO


def test_a_model_of_the_hub_is_read() -> None:
    assert read("hf:a/b") == HfModel("a/b", "")
    assert read("hf:unsloth/Qwen3-8B-GGUF:Q4_K_M") == HfModel("unsloth/Qwen3-8B-GGUF", "Q4_K_M")
    assert HfModel("a/b", "Q8_0").reference == "a/b:Q8_0"
    assert HfModel("a/b", "").reference == "a/b"


def test_anything_else_is_a_path(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=rf"{tmp_path}/demo2: no such file; --model takes a GGUF file, demo, or hf:"):
        read(str(tmp_path / "demo2"))
