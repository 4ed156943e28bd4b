"""What the normaliser left out of a prompt, counted.

Owns: the kinds, and how their characters become tokens.
Never: drops anything itself.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dropped:
    """Characters that stood in the client's body and do not in the prompt, by kind.

    `attribution` is the client's billing block, `repeated` are assistant messages that said the last one again. What
    was only written differently (blocks, marks, ids) is not counted.
    """

    attribution_characters: int = 0
    repeated_characters: int = 0

    def tokens(self, prompt_tokens: int, prompt_characters: int) -> int:
        """An estimate, at the ratio of the prompt that was read."""
        dropped = self.attribution_characters + self.repeated_characters
        return round(dropped * prompt_tokens / prompt_characters) if prompt_characters else 0
