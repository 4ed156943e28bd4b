"""What `warm --url` counts of one request."""

import pytest

from infra.bench import warm_url
from infra.bench.asking import Outcome

pytestmark = pytest.mark.unit


def test_a_refusal_is_no_first_token() -> None:
    refused = Outcome(first_s=0.001, whole_s=0.001, error="status 401", status=401)
    assert warm_url.figures(refused) == {"failed": 1, "errors": {"status 401": 1}}


def test_an_answer_has_its_first_token_and_its_tokens() -> None:
    answered = Outcome(first_s=0.25, whole_s=1.0, prompt_tokens=30, cached_tokens=20, status=200)
    assert warm_url.figures(answered) == {"failed": 0, "first_ms": 250.0, "prompt_tokens": 30, "cached_tokens": 20}
