"""What a URL on the command line says."""

import pytest

from infra.bench.address import Address, address, addresses, compared
from infra.bench.asking import CHAT, MESSAGES
from infra.errors import ConfigError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://h:1", Address("h:1", "http://h:1", "k", MESSAGES)),
        ("https://h/", Address("h", "https://h", "k", MESSAGES)),
        ("corral=http://h:1/v1/messages", Address("corral", "http://h:1", "k", MESSAGES)),
        ("vllm=http://h:1/some/v1/chat/completions", Address("vllm", "http://h:1/some", "k", CHAT)),
        ("http://h:1/?a=b", Address("h:1", "http://h:1/?a=b", "k", MESSAGES)),
    ],
)
def test_an_address_has_a_name_a_server_and_a_form(text: str, expected: Address) -> None:
    assert address(text, "k") == expected


@pytest.mark.parametrize("text", ["", "h:1", "ftp://h", "name=", "http://", "http://h:port"])
def test_what_is_no_address_is_said_with_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match="must be an address as http://HOST:PORT"):
        address(text)


def test_a_name_that_comes_twice_gets_a_number() -> None:
    assert [one.name for one in addresses(["http://h:1,http://h:1", "b=http://h:1"])] == ["h:1", "h:1 #2", "b"]


def test_to_compare_takes_two() -> None:
    assert [one.name for one in compared(["a=http://h:1"], ["b=http://h:2"], "")] == ["a", "b"]
    assert compared(None, None, "") == ()
    with pytest.raises(ConfigError, match="--compare: needs two"):
        compared(["http://h:1"], None, "")
    with pytest.raises(ConfigError, match="stray: is no option"):
        compared(None, ["stray"], "")
