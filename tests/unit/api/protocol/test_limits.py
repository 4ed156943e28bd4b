"""How long a client waits, in its headers' words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.protocol.limits import limits
from infra.errors import BadRequest
from scheduler.contract import Limits

pytestmark = pytest.mark.unit

NAMES = {
    "X-Corral-Timeout": "total_s",
    "X-Corral-First-Token-Timeout": "first_token_s",
    "X-Corral-Between-Tokens-Timeout": "between_tokens_s",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("text", "seconds"), [("30", 30), (" 2.5 ", 2.5), ("0.001", 0.001), ("86400", 86400)])
def test_each_header_is_one_limit(name: str, text: str, seconds: float) -> None:
    assert limits({name.lower(): text}) == Limits(**{NAMES[name]: seconds})


def test_no_header_is_no_limit() -> None:
    assert limits({}) == limits({"x-corral-timeout": " "}) == Limits()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["0", "0.0", "-1", "86401", "1e3", "inf", "nan", "30s", "1,5", "٣", "0.0001", "+1"])
def test_anything_else_is_refused_and_names_the_header(name: str, text: str) -> None:
    with pytest.raises(BadRequest, match=f"^{name}: must be a number of seconds"):
        limits({name.lower(): text})


@given(st.text(max_size=8))
def test_whatever_it_says_it_is_a_limit_or_a_bad_request(text: str) -> None:
    try:
        found = limits({"x-corral-timeout": text}).total_s
    except BadRequest:
        return
    assert found is None or 0 < found <= 86_400
