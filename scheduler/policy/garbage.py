"""Whether what an engine says is garbage: one token again and again, beyond anything that is meant.

Owns: the count of a repeated token, and how many garbled answers in a row speak against the engine.
Never: reads an answer's meaning, ends anything.

A model can lose itself in a loop, and an engine whose numbers are no numbers any more says its first token for ever.
One such answer does not tell which it was; several in a row, with no good one between them, speak against the engine.
"""

IN_A_ROW = 3  # garbled answers after which the engine is restarted


class Repeats:
    """The pieces of one answer, in order. With `limit` 0 nothing is ever garbage."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._last = ""
        self._count = 0

    def add(self, piece: str) -> bool:
        """True from the moment on at which the same piece has come more often in a row than the limit."""
        self._count = self._count + 1 if piece == self._last else 1
        self._last = piece
        return 0 < self._limit < self._count


def row(before: int, *, garbled: bool) -> int:
    """Garbled answers in a row, with this one."""
    return before + 1 if garbled else 0


def speaks_against_engine(in_a_row: int) -> bool:
    return in_a_row >= IN_A_ROW
