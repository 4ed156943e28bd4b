"""Writes a grammar for any text that does not contain certain words.

Owns: that grammar, in the engine's own notation (GBNF).
Never: decides which words.

The notation has no "not". So the grammar is the automaton of Aho and Corasick, written out: a state for each beginning
of a word, which says how much of a word the text ends with, and no step that would complete one.
"""

from collections.abc import Sequence


def grammar_without(words: Sequence[str]) -> str:
    """A grammar that takes every text in which none of `words` (not empty) occurs."""
    words = [word for word in dict.fromkeys(words) if not any(other != word and other in word for other in words)]
    states = list(dict.fromkeys(word[:length] for word in words for length in range(len(word))))
    number = {state: index for index, state in enumerate(states)}
    rules = [f"s{number[state]} ::= ({_steps(state, words, number)})?" for state in states]
    return "\n".join(["root ::= s0", *rules])


def _steps(state: str, words: Sequence[str], number: dict[str, int]) -> str:
    """What may follow in `state`: each letter that goes on with some word, and every other letter."""
    letters = sorted({word[len(start)] for start in number for word in words if _goes_on(state, start, word)})
    allowed = [letter for letter in letters if not (state + letter).endswith(tuple(words))]
    steps = [f"[{_escaped(letter)}] s{number[_longest(state + letter, number)]}" for letter in allowed]
    return " | ".join([*steps, f"[^{''.join(map(_escaped, letters))}] s0"])


def _goes_on(state: str, start: str, word: str) -> bool:
    return state.endswith(start) and word.startswith(start)


def _longest(text: str, states: dict[str, int]) -> str:
    """The longest end of `text` that is a state; the empty one always is."""
    return next(text[start:] for start in range(len(text) + 1) if text[start:] in states)


def _escaped(letter: str) -> str:
    return f"\\U{ord(letter):08X}"
