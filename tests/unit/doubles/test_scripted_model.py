"""Scripted models as files: pieces that can be told apart, and the same bytes for the same script."""

import hashlib
from pathlib import Path

import pytest
from gguf import GGUFReader
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles import scripted_model
from tests.doubles.scripted_model import pieces, tool_then_text, write

pytestmark = pytest.mark.unit


@given(st.text(alphabet="ab c\n").filter(lambda text: bool(text) and not text.endswith(" ")))
def test_pieces_are_all_different_and_add_up_to_the_text(text: str) -> None:
    try:
        found = pieces(text, set())
    except ValueError:
        return
    assert "".join(found) == text
    assert len(set(found)) == len(found)
    assert "" not in found


def test_a_repeated_word_is_joined_with_the_next() -> None:
    assert pieces("the cat and the dog", set()) == ["the", " cat", " and", " the", " dog"]
    assert pieces("so so so good", set()) == ["so", " so", " so good"]


def test_a_text_that_ends_in_a_repetition_is_refused() -> None:
    with pytest.raises(ValueError, match="choose other words"):
        pieces("now and now and now", {"now", " and", " now", " and now"})


@pytest.mark.parametrize("script", scripted_model.ALL, ids=lambda script: script.name)
def test_the_same_script_gives_the_same_bytes(script: scripted_model.Script, tmp_path: Path) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    first, second = (write(script, tmp_path / folder).read_bytes() for folder in ("first", "second"))
    assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()


def test_a_model_is_written_once(tmp_path: Path) -> None:
    path = write(scripted_model.TEXT_ONLY, tmp_path)
    path.write_bytes(b"kept")
    assert write(scripted_model.TEXT_ONLY, tmp_path).read_bytes() == b"kept"


def test_other_words_give_another_model(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one = write(tool_then_text(), tmp_path)
    other = write(tool_then_text(answer="Something else entirely."), tmp_path / "other")
    assert one.read_bytes() != other.read_bytes()


def test_a_heavy_model_takes_16_kib_of_cache_a_token(tmp_path: Path) -> None:
    fields = GGUFReader(write(scripted_model.KV_HEAVY, tmp_path)).fields
    layers, heads, wide = (
        int(fields[f"llama.{name}"].contents())
        for name in ("block_count", "attention.head_count_kv", "attention.key_length")
    )
    assert layers * 2 * heads * wide * 2 == 16 * 1024
