"""Which key's owner is calling."""

import pytest

from api.auth import Keyring
from infra.errors import NotAuthenticated

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


def test_no_key_is_kept_in_clear_text() -> None:
    assert "key-of-ann" not in repr(vars(KEYRING))
