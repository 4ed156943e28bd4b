"""What was left out of a prompt, in tokens."""

import pytest

from api.protocol.dropped import Dropped

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("dropped", "prompt_tokens", "prompt_characters", "tokens"),
    [
        (Dropped(), 1000, 4000, 0),
        (Dropped(attribution_characters=80), 1000, 4000, 20),
        (Dropped(attribution_characters=80, repeated_characters=400), 1000, 4000, 120),
        (Dropped(attribution_characters=80), 0, 0, 0),
    ],
)
def test_tokens_are_at_the_ratio_of_the_prompt(
    dropped: Dropped, prompt_tokens: int, prompt_characters: int, tokens: int
) -> None:
    assert dropped.tokens(prompt_tokens, prompt_characters) == tokens
