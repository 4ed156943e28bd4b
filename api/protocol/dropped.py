"""What the normaliser left out of a prompt, counted.

Owns: the kinds, and how their bytes become tokens.
Never: drops anything itself.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dropped:
    """UTF-8 bytes that stood in the client's body and not in the prompt, by kind.

    `attribution` is the client's billing block, `repeated` are assistant messages that said the last one again. What
    was only written differently (blocks, marks, ids) is not counted.
    """

    attribution_bytes: int = 0
    repeated_bytes: int = 0

    def tokens(self, prompt_tokens: int, prompt_bytes: int) -> int:
        """An estimate, at the ratio of the prompt that was read: its tokens and the bytes of its packed request.

        Too low for a prompt with images, whose bytes are many and whose tokens few.
        """
        dropped_bytes = self.attribution_bytes + self.repeated_bytes
        return round(dropped_bytes * prompt_tokens / prompt_bytes) if prompt_bytes else 0
