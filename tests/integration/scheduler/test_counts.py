"""Counting beside the queue, on both sides: asked, answered in time or estimated, and never piled up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from infra import keys
from infra.errors import BadRequest
from infra.redis_client import READ_TIMEOUT_S, async_client
from scheduler import counts as counting
from scheduler.answering import CountRequest, CountRequests
from scheduler.contract import ClusterView, CountReply, WorkerInfo, WorkerState
from scheduler.counts import Counts, TokenCount
from scheduler.follow import Follower
from scheduler.membership import Membership
from scheduler.packing import unpack
from tests.doubles.services import wait_for
from tests.integration.scheduler.store import Store, packed, request

pytestmark = pytest.mark.integration

WAIT_S = 20
AT_ONCE_S = 0.001


class Cluster:
    """What an API process knows of its workers."""

    def __init__(self) -> None:
        self.serves("hash")

    def serves(self, *hashes: str) -> None:
        infos = [
            WorkerInfo(name=f"w{n}", incarnation="i", state=WorkerState.READY, model="m", model_hash=one)
            for n, one in enumerate(hashes)
        ]
        self.view = cast(ClusterView, SimpleNamespace(workers=[SimpleNamespace(info=info) for info in infos]))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def counts(store: Store, cluster: Cluster) -> AsyncIterator[Counts]:
    reader = async_client(store.url, connections=1, timeout_s=READ_TIMEOUT_S)
    follower = Follower(reader, "api-of-test")
    task = asyncio.create_task(follower.run())
    yield Counts(store.redis, follower, "api-of-test", cast(Membership, cluster))
    task.cancel()
    await asyncio.wait([task])
    await reader.aclose()


@pytest.fixture
def requests(store: Store) -> CountRequests:
    return CountRequests(store.sync, store.reader, "m")


async def answer(requests: CountRequests, reply: CountReply) -> CountRequest:
    """What a counting thread does for one request."""

    def one() -> CountRequest:
        while (request := requests.take()) is None:
            pass
        requests.reply(request, reply)
        return request

    return await asyncio.to_thread(one)


async def both(counts: Counts, requests: CountRequests, text: str, reply: CountReply) -> TokenCount:
    count, _ = await asyncio.gather(counts.count(packed(text), WAIT_S), answer(requests, reply))
    return count


async def test_a_worker_s_count_is_exact_and_made_of_the_very_request(counts: Counts, requests: CountRequests) -> None:
    count, asked = await asyncio.gather(counts.count(packed("a"), WAIT_S), answer(requests, CountReply(tokens=7)))
    assert count == TokenCount(7, exact=True)
    assert unpack(asked.body) == request("a")


async def test_an_equal_prompt_is_asked_for_once(counts: Counts, requests: CountRequests, store: Store) -> None:
    await both(counts, requests, "a", CountReply(tokens=7))
    assert await counts.count(packed("a"), AT_ONCE_S) == TokenCount(7, exact=True)
    assert store.raw.llen(keys.count("m")) == 0


async def test_another_model_under_the_same_name_is_asked_again(
    counts: Counts, requests: CountRequests, cluster: Cluster
) -> None:
    await both(counts, requests, "a", CountReply(tokens=7))
    cluster.serves("hash", "hash", "")
    assert (await counts.count(packed("a"), AT_ONCE_S)).exact, "more workers with it, or one that still loads"
    cluster.serves("other")
    assert await both(counts, requests, "a", CountReply(tokens=9)) == TokenCount(9, exact=True)
    cluster.serves("hash")
    assert await counts.count(packed("a"), AT_ONCE_S) == TokenCount(7, exact=True)


async def test_without_an_answer_in_time_the_count_is_an_estimate_that_grows_with_the_prompt(counts: Counts) -> None:
    short, long = [await counts.count(packed("a" * size), AT_ONCE_S) for size in (10, 10_000)]
    assert not short.exact
    assert not long.exact
    assert 0 < short.tokens < long.tokens / 10


async def test_estimates_learn_from_counts(counts: Counts, requests: CountRequests) -> None:
    before = await counts.count(packed("x" * 1000), AT_ONCE_S)
    for number in range(40):
        await both(counts, requests, f"{number} {'x' * 1000}", CountReply(tokens=3000))
    after = await counts.count(packed("y" * 1000), AT_ONCE_S)
    assert abs(after.tokens - 3000) < abs(before.tokens - 3000) / 5


async def test_a_refusal_is_the_caller_s_mistake(counts: Counts, requests: CountRequests) -> None:
    with pytest.raises(BadRequest, match="the template says no"):
        await both(counts, requests, "a", CountReply(error="the template says no"))


async def test_a_reply_that_is_none_is_no_answer(counts: Counts, store: Store) -> None:
    async def garble() -> None:
        popped: Any = await asyncio.to_thread(store.reader.blpop, [keys.count("m")], timeout=3)
        store.sync.xadd(popped[1].partition(b"\n")[0], {"d": "{"})

    count, _ = await asyncio.gather(counts.count(packed(), WAIT_S), garble())
    assert not count.exact


async def test_a_request_whose_asker_gave_up_is_passed_by(
    counts: Counts, requests: CountRequests, store: Store
) -> None:
    patient = asyncio.create_task(counts.count(packed("patient"), WAIT_S))
    await waiting(store, 1, "patient")
    for number in range(5):
        assert not (await counts.count(packed(f"late {number}"), AT_ONCE_S)).exact
    assert store.raw.llen(keys.count("m")) == 6
    for text in ("patient", "new"):
        asking = patient if text == "patient" else asyncio.create_task(counts.count(packed(text), WAIT_S))
        asked = await answer(requests, CountReply(tokens=7))
        assert unpack(asked.body) == request(text)
        assert (await asking).exact


async def test_a_line_that_nobody_waits_for_is_gone(counts: Counts, store: Store) -> None:
    assert not (await counts.count(packed(), AT_ONCE_S)).exact
    await asyncio.to_thread(wait_for, lambda: not store.raw.exists(keys.count("m")), "the line to run out")


async def test_the_line_holds_so_many_and_the_newest_stay(
    counts: Counts, requests: CountRequests, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "MOST_WAITING", 3)
    async with AsyncExitStack() as asked:
        for number in range(8):
            task = asyncio.create_task(counts.count(packed(str(number)), WAIT_S))
            asked.callback(task.cancel)
            await waiting(store, min(number + 1, 3), str(number))
        taken = [await asyncio.to_thread(requests.take) for _ in range(3)]
    assert [unpack(one.body) for one in taken if one] == [request(str(number)) for number in (5, 6, 7)]
    assert store.raw.llen(keys.count("m")) == 0


async def waiting(store: Store, count: int, text: str) -> None:
    """Wait until `count` requests wait and the last one holds `text`."""
    async with asyncio.timeout(WAIT_S):
        while True:
            entries: Any = await cast(Any, store.redis.lrange(keys.count("m"), 0, -1))
            if len(entries) == count and unpack(entries[-1].split(b"\n", 2)[2]) == request(text):
                return
            await asyncio.sleep(0)


async def test_nothing_of_a_count_stays_for_ever(counts: Counts, requests: CountRequests, store: Store) -> None:
    await both(counts, requests, "a", CountReply(tokens=7))
    patient = asyncio.create_task(counts.count(packed("patient"), WAIT_S))
    await waiting(store, 1, "patient")
    assert store.lasting() == []
    patient.cancel()


@pytest.mark.parametrize("entry", [b"", b"name", b"name\nbody of an older version", b"\xff\n1\nx"])
async def test_an_entry_of_another_form_is_passed_by(requests: CountRequests, store: Store, entry: bytes) -> None:
    store.sync.rpush(keys.count("m"), entry)
    assert requests.take() is None
    assert store.raw.llen(keys.count("m")) == 0
