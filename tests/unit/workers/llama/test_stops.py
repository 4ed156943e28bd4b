"""The stop matcher gives the same outcome for every way to cut the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.llama.stops import StopMatcher

pytestmark = pytest.mark.unit

few_letters = st.text(alphabet="ab\n", max_size=30)
words = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=4)


def fed(sequences: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(sequences)
    out = "".join(matcher.feed(piece) for piece in pieces)
    return out + matcher.flush(), matcher.hit


def expected(sequences: list[str], text: str) -> tuple[str, str | None]:
    """The definition, letter by letter: the first end of a sequence stops; the longest one that ends there is it."""
    for end in range(1, len(text) + 1):
        ending = [word for word in sequences if text[:end].endswith(word)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(words, few_letters, st.data())
def test_every_chunking_gives_what_the_definition_says(sequences: list[str], text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    assert fed(sequences, pieces) == expected(sequences, text)


@given(words, few_letters)
def test_no_text_that_went_out_is_ever_part_of_a_stop_sequence(sequences: list[str], text: str) -> None:
    out, hit = fed(sequences, list(text))

    assert hit is not None or not any(word in out for word in sequences)


def test_text_without_stop_sequences_passes_at_once() -> None:
    assert StopMatcher(()).feed("anything") == "anything"


def test_no_more_is_held_back_than_may_become_a_stop_sequence() -> None:
    matcher = StopMatcher(["</answer>"])

    assert matcher.feed("well </a") == "well "
    assert matcher.feed("b>") == "</ab>"


def test_empty_sequences_are_ignored() -> None:
    assert fed(["", "x"], ["ax"]) == ("a", "x")
