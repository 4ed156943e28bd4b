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


@given(st.lists(st.text(alphabet="ab c\n").filter(lambda text: bool(text) and not text.endswith(" ")), min_size=1))
def test_each_piece_stands_once_in_all_that_is_said_and_they_add_up_to_the_text(texts: list[str]) -> None:
    said = "\0".join(texts)
    for text in texts:
        try:
            found = pieces(text, said)
        except ValueError:
            continue
        assert "".join(found) == text
        assert all(said.count(piece) == 1 for piece in found)


def test_a_repeated_word_is_joined_with_the_next_or_at_the_end_with_the_one_before() -> None:
    assert split("see the cat and the dog") == ["see", " the cat", " and", " the dog"]
    assert split("so so so good") == ["so so so", " good"]
    assert split("to be and be") == ["to", " be and be"]


def split(text: str) -> list[str]:
    return pieces(text, text)


def test_a_word_that_has_to_be_a_piece_of_its_own_is_one() -> None:
    text = "so do it or do that"
    assert pieces(text, text, frozenset({" that"})) == ["so", " do it", " or do", " that"]


def test_a_text_that_stands_inside_another_is_refused() -> None:
    with pytest.raises(ValueError, match="choose other words"):
        pieces("and now", "and now\0here and now")


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
