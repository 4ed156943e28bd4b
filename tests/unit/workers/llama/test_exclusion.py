"""The grammar takes exactly the texts without the words."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.llama.exclusion import grammar_without

pytestmark = pytest.mark.unit

STEP = re.compile(r"\[(\^?)((?:\\U[0-9A-F]{8})+)\] (s\d+)")
words = st.lists(st.text(alphabet="ab<", min_size=1, max_size=5), min_size=1, max_size=4)


def takes(grammar: str, text: str) -> bool:
    """Plays the grammar; each of its rules is one state, every state may be the last."""
    rules = dict(line.split(" ::= ") for line in grammar.splitlines())
    state = rules["root"]
    for letter in text:
        code = f"\\U{ord(letter):08X}"
        following = [to for no, codes, to in STEP.findall(rules[state]) if (code in codes) != bool(no)]
        if not following:
            return False
        (state,) = following
    return True


@given(words, st.text(alphabet="ab<c", max_size=30))
def test_a_text_is_taken_unless_a_word_is_in_it(excluded: list[str], text: str) -> None:
    assert takes(grammar_without(excluded), text) == (not any(word in text for word in excluded))


@given(words, st.text(alphabet="ab<", max_size=10))
def test_a_text_with_a_word_is_refused(excluded: list[str], around: str) -> None:
    assert not takes(grammar_without(excluded), around + excluded[0] + around)
