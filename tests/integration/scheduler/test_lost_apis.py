"""API processes that died, told from those that are silent for another reason."""

import pytest

from infra import keys
from infra.redis_client import async_client
from scheduler.admitting import API_LIFETIME_MS
from scheduler.jobs import Jobs, Limits
from scheduler.lost_apis import SILENT_MS, LostApis
from tests.integration.scheduler.store import HOME_MS, Store, candidates, spec

pytestmark = pytest.mark.integration


def jobs_of(store: Store, api: str) -> Jobs:
    return Jobs(store.redis, api, Limits(queue=8, home_ms=HOME_MS))


def silence(store: Store, api: str, for_ms: int) -> None:
    store.raw.pexpire(keys.wake(api), API_LIFETIME_MS - for_ms)


def known(store: Store) -> set[str]:
    return set(store.raw.smembers(keys.APIS))


async def test_the_jobs_of_a_dead_one_are_given_up_and_those_of_others_are_not(store: Store) -> None:
    worker = store.worker()
    runs = {}
    for api in ("dead", "alive"):
        jobs = jobs_of(store, api)
        await jobs.announce()
        job = spec()
        await jobs.admit(job, candidates("w1"), 1)
        claimed = worker.claims.claim(slots=4)
        assert claimed is not None
        runs[api] = claimed.id
    waits = spec()
    await jobs_of(store, "dead").admit(waits, candidates("w1"), 1)
    silence(store, "dead", SILENT_MS + 500)
    await LostApis(store.redis).give_up()
    assert worker.beat(*runs.values()) == {runs["dead"]: "cancelled", runs["alive"]: "running"}
    assert worker.claims.claim(slots=4) is None
    assert known(store) == {"alive"}
    assert store.lasting() == []


async def test_one_that_has_only_just_spoken_is_left_alone(store: Store) -> None:
    await jobs_of(store, "one").announce()
    silence(store, "one", SILENT_MS // 2)
    await LostApis(store.redis).give_up()
    assert known(store) == {"one"}
    assert store.raw.exists(keys.wake("one"))


async def test_one_that_speaks_while_it_is_looked_at_is_left_alone(store: Store) -> None:
    jobs, lost = jobs_of(store, "one"), LostApis(store.redis)
    await jobs.announce()
    silence(store, "one", SILENT_MS + 500)
    assert await lost._silent() == ["one"]
    await jobs.announce()
    assert not await lost._forget("one")
    assert known(store) == {"one"}
    assert store.raw.exists(keys.wake("one"))


async def test_a_frozen_one_still_has_its_connection(store: Store) -> None:
    frozen = async_client(store.url, name=keys.api_client("frozen"))
    try:
        await frozen.ping()
        await jobs_of(store, "frozen").announce()
        silence(store, "frozen", 30_000)
        await LostApis(store.redis).give_up()
        assert known(store) == {"frozen"}
    finally:
        await frozen.aclose()
    await LostApis(store.redis).give_up()
    assert known(store) == set()
