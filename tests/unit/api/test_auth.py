"""Which key's owner is calling."""

import pytest

from api.auth import Keyring
from infra.errors import NotAllowed, NotAuthenticated

pytestmark = pytest.mark.unit

KEYRING = Keyring({"ann": "key-of-ann", "bob": "key-of-bob"})


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"x-api-key": "key-of-ann"}, "ann"),
        ({"authorization": "Bearer key-of-bob"}, "bob"),
        ({"authorization": "bearer  key-of-bob "}, "bob"),
        ({"x-api-key": "old", "authorization": "Bearer key-of-bob"}, "bob"),
        ({"x-api-key": "key-of-ann", "authorization": "Bearer old"}, "ann"),
    ],
)
def test_a_key_in_either_header_names_its_owner(headers: dict[str, str], name: str) -> None:
    assert KEYRING.caller(headers) == name


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-api-key": " "},
        {"authorization": "Bearer"},
        {"authorization": "Basic key-of-ann"},
        {"authorization": "key-of-ann"},
    ],
)
def test_no_key_is_refused_with_where_to_put_it(headers: dict[str, str]) -> None:
    with pytest.raises(NotAuthenticated, match="no key given: send it as x-api-key"):
        KEYRING.caller(headers)


@pytest.mark.parametrize("key", ["ann", "key-of-an", "key-of-ann2", "KEY-OF-ANN", "\u00e9", "\udcff"])
def test_an_unknown_key_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(NotAuthenticated) as refusal:
        KEYRING.caller({"x-api-key": key})
    assert refusal.value.message == "this key is not known here: check x-api-key or Authorization: Bearer"


def test_without_keys_everyone_is_local() -> None:
    keyring = Keyring({})
    assert keyring.open
    assert keyring.caller({"x-api-key": "anything"}) == keyring.caller({}) == "local"
    assert not KEYRING.open


OPEN = Keyring({})


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8000", "127.9.9.9:1", "localhost", "LocalHost:8000", "localhost.:80", "[::1]:8000"]
)
@pytest.mark.parametrize("origin", [None, "http://localhost:3000", "http://127.0.0.1", "https://[::1]:1"])
def test_without_keys_this_machine_may_ask(host: str, origin: str | None) -> None:
    assert OPEN.caller({"host": host} | ({"origin": origin} if origin else {})) == "local"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8000",
        "127.example",
        "10.0.0.1",
        "[::2]:8000",
        "[",
        "",
        "localhost@evil.example",
        "0.0.0.0:8000",
    ],
)
def test_without_keys_a_name_of_elsewhere_is_refused_with_what_to_do(host: str) -> None:
    """A page of the web whose name was made to lead here (DNS rebinding)."""
    with pytest.raises(NotAllowed, match="CORRAL_API_KEYS"):
        OPEN.caller({"host": host})


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "", "file://", "http://localhost.evil.example", "http://[", "localhost"]
)
def test_without_keys_a_page_of_elsewhere_is_refused_with_what_to_do(origin: str) -> None:
    """Any page of the web may make a browser post plain text to a port of its own machine."""
    with pytest.raises(NotAllowed, match="CORRAL_API_KEYS"):
        OPEN.caller({"host": "127.0.0.1:8000", "origin": origin})


def test_with_keys_the_key_decides() -> None:
    headers = {"host": "corral.example", "origin": "https://corral.example", "x-api-key": "key-of-ann"}
    assert KEYRING.caller(headers) == "ann"


def test_no_key_is_kept_in_clear_text() -> None:
    assert "key-of-ann" not in repr(vars(KEYRING))
