"""What API processes tell each other of their requests, and that nothing of it stays."""

import pytest

from infra import keys
from scheduler.jobs import Jobs, Limits
from scheduler.ledgers import LOOKS_MS, TOLD_MS, Ledgers
from tests.integration.scheduler.store import HOME_MS, Store

pytestmark = pytest.mark.integration


async def here(store: Store, api: str) -> Ledgers:
    """A process that the others know of."""
    await Jobs(store.redis, api, Limits(queue=8, home_ms=HOME_MS)).announce()
    return Ledgers(store.redis, api)


async def test_a_look_is_seen_by_all_and_what_they_told_is_heard_by_whom_did_not_say_it(store: Store) -> None:
    one, two = await here(store, "one"), await here(store, "two")
    assert await two.watched() == (False, 2)
    assert await one.look() == []
    assert await two.watched() == (True, 2)
    await one.tell(b"mine")
    await two.tell(b"theirs")
    assert (await one.look(), await two.look()) == ([b"theirs"], [b"mine"])


async def test_one_process_alone_hears_nothing(store: Store) -> None:
    one = await here(store, "one")
    await one.tell(b"mine")
    assert await one.look() == []


async def test_a_word_and_a_look_are_forgotten_soon_after_the_last_one(store: Store) -> None:
    one = await here(store, "one")
    await one.look()
    await one.tell(b"mine")
    assert 0 < store.raw.pttl(keys.WATCHED) <= LOOKS_MS
    assert 0 < store.raw.pttl(keys.ledger("one")) <= TOLD_MS
