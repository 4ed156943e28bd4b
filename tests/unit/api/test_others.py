"""The requests of several API processes, seen from one of them."""

import asyncio
from typing import Any, cast

import pytest

from api.others import LOOKS_S, Others
from infra.errors import BrokerDown
from scheduler.ledgers import Ledgers

pytestmark = pytest.mark.unit


class Store:
    """What processes tell each other, without a broker; `away`: it does not answer."""

    def __init__(self) -> None:
        self.told: dict[str, bytes] = {}
        self.watched = self.away = False

    def of(self, api: str) -> Ledgers:
        return cast(Ledgers, _End(self, api))


class _End:
    def __init__(self, store: Store, api: str) -> None:
        self._store, self._api = store, api

    async def look(self) -> list[bytes]:
        if self._store.away:
            raise BrokerDown("away")
        self._store.watched = True
        return [word for api, word in self._store.told.items() if api != self._api]

    async def watched(self) -> tuple[bool, int]:
        return self._store.watched, 2

    async def tell(self, word: bytes) -> None:
        self._store.told[self._api] = word


class Answering:
    def __init__(self, agent: str, took_ms: int) -> None:
        self._fields = {"agent": agent, "took_ms": took_ms}

    def live(self) -> dict[str, Any]:
        return self._fields


def agents(requests: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["agent"], one["api"]) for one in requests]


async def test_one_who_looks_sees_the_requests_of_all_in_the_order_of_one() -> None:
    store, now = Store(), [0.0]
    first, second = (Others(store.of(name), name, lambda: now[0]) for name in ("a", "b"))
    first.own.began("1", Answering("young", 10))
    second.own.began("2", Answering("old", 500))
    for at_s, others, agent in ((1.0, first, "oldest"), (2.0, second, "older"), (3.0, first, "newest")):
        now[0] = at_s
        others.own.ended(agent, {"agent": agent})
    first.look()
    for others in (first, second, first):
        await others.turn()
    seen = first.look()
    assert (seen["apis"], seen["apis_silent"]) == (["a", "b"], 0)
    assert agents(seen["running"]) == [("old", "b"), ("young", "a")]
    assert agents(seen["recent"]) == [("newest", "a"), ("older", "b"), ("oldest", "a")]
    assert [one["ago_ms"] for one in seen["recent"]] == [0, 1000, 2000]


async def test_nothing_is_told_and_nobody_is_asked_while_nobody_looks() -> None:
    store, now = Store(), [0.0]
    others = Others(store.of("a"), "a", lambda: now[0])
    await others.turn()
    assert (store.told, store.watched) == ({}, False)
    others.look()
    now[0] = LOOKS_S
    await others.turn()
    assert store.watched is False


async def test_who_looks_again_later_is_not_shown_what_was_heard_long_ago() -> None:
    store, now = Store(), [0.0]
    others = Others(store.of("a"), "a", lambda: now[0])
    store.told["b"] = b'["b", {"running": [{"took_ms": 1}], "recent": []}]'
    others.look()
    await others.turn()
    assert len(others.look()["running"]) == 1
    store.told.clear()
    now[0] = LOOKS_S
    await others.turn()
    now[0] = 3600.0
    seen = others.look()
    assert (seen["running"], seen["apis"], seen["apis_silent"]) == ([], ["a"], 1)


async def test_one_that_has_told_nothing_is_counted() -> None:
    store = Store()
    others = Others(store.of("a"), "a")
    others.look()
    await others.turn()
    assert (others.look()["apis"], others.look()["apis_silent"]) == (["a"], 1)


@pytest.mark.parametrize(
    "word",
    [
        b"{",
        b"[1]",
        b'["b", {"running": []}]',
        b'["b", 7]',
        b'["b", {"running": [7], "recent": []}]',
        b'["b", {"running": [], "recent": [{}]}]',
    ],
)
async def test_a_word_of_another_version_is_passed_over(word: bytes) -> None:
    store = Store()
    store.told["b"] = word
    others = Others(store.of("a"), "a")
    others.look()
    await others.turn()
    assert others.look()["apis"] == ["a"]


async def test_a_broker_that_is_away_leaves_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    store, turned = Store(), asyncio.Event()
    others = Others(store.of("a"), "a")
    others.own.began("1", Answering("mine", 10))
    store.told["b"] = b'["b", {"running": [{"took_ms": 1}], "recent": []}]'
    others.look()
    await others.turn()
    assert others.look()["apis"] == ["a", "b"]
    store.away = True

    async def sleep(_: float) -> None:
        turned.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "sleep", sleep)
    running = asyncio.create_task(others.run())
    await turned.wait()
    assert others.look()["apis"] == ["a"]
    assert agents(others.look()["running"]) == [("mine", "a")]
    running.cancel()
    await asyncio.wait([running])
