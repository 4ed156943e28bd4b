"""Finds the client's stop sequences in streamed text.

Owns: the matcher, which says what text may go out and which sequence was hit. The engine could stop by itself but does
not tell which sequence it met, and the client must be told.
Never: knows where the text comes from; it holds no more back than may still become a stop sequence.
"""

from collections.abc import Iterable


class StopMatcher:
    """Feed it text in any chunks: the outcome is the same for every way to cut the text.

    The match that ends first wins; of those that end together, the longest.
    """

    def __init__(self, sequences: Iterable[str]) -> None:
        self._sequences = tuple(dict.fromkeys(filter(None, sequences)))
        self._held = ""
        self.hit: str | None = None

    def feed(self, text: str) -> str:
        """The text that is now certain. After a hit nothing more comes out."""
        if not self._sequences:
            return text
        if self.hit is not None:
            return ""
        seen = self._held + text
        first = min(
            ((start + len(word), -len(word), word) for word in self._sequences if (start := seen.find(word)) >= 0),
            default=None,
        )
        if first is not None:
            end, _, self.hit = first
            self._held = ""
            return seen[: end - len(self.hit)]
        certain = len(seen) - self._possible_beginning(seen)
        self._held = seen[certain:]
        return seen[:certain]

    def flush(self) -> str:
        """What was held back: no more text follows, so it is no stop sequence."""
        held, self._held = self._held, ""
        return held

    def _possible_beginning(self, seen: str) -> int:
        """Length of the longest end of `seen` with which some sequence begins."""
        longest = min(len(seen), max(map(len, self._sequences)) - 1)
        for length in range(longest, 0, -1):
            if any(word.startswith(seen[-length:]) for word in self._sequences):
                return length
        return 0
