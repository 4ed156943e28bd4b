"""Every error that can reach a client has its row in the API's one table, and no row is left over."""

from collections.abc import Iterator

import pytest

from api.errors import TABLE
from infra import errors
from infra.errors import CorralError

pytestmark = pytest.mark.contracts

# A fenced worker says nothing, a cancelled client is gone, a saved cache that is of no use costs a prefill, and the
# others end a process before it serves.
NEVER_SENT: set[type[CorralError]] = {
    errors.Fenced,
    errors.Cancelled,
    errors.StoreError,
    errors.ConfigError,
    errors.StartError,
}


def tree(cls: type[CorralError]) -> Iterator[type[CorralError]]:
    """The classes of the house's one tree; other modules' own, which must not cross a border, are not in it."""
    if cls.__module__ == errors.__name__:
        yield cls
    for child in cls.__subclasses__():
        yield from tree(child)


def test_every_error_that_can_reach_a_client_has_a_row() -> None:
    assert {cls.code for cls in tree(CorralError) if cls not in NEVER_SENT} == set(TABLE)


def test_no_two_errors_share_a_code() -> None:
    codes = [cls.code for cls in tree(CorralError)]
    assert len(codes) == len(set(codes))


def test_the_client_is_asked_to_retry_only_what_may_end_otherwise() -> None:
    assert all(row.retry for row in TABLE.values() if row.wait)
    assert not any(row.retry for row in TABLE.values() if row.status < 500)
