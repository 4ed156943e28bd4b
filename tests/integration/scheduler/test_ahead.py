"""A claim that is asked ahead: the same claim, once, whatever becomes of its answer."""

import threading
from dataclasses import replace

import pytest

from infra import keys
from scheduler.claims import Claims, Question
from scheduler.contract import ClaimedJob
from tests.integration.scheduler.store import Store, Worker, candidates, spec

pytestmark = pytest.mark.integration
STATE = ((), 1.0)


def ask(worker: Worker) -> Question | None:
    return worker.claims.ask(1, 1, *STATE)


def answered(worker: Worker, question: Question | None) -> ClaimedJob | None:
    """As a ticket's thread does."""
    assert question is not None
    found: list[ClaimedJob | None] = []
    thread = threading.Thread(target=lambda: found.append(worker.claims.answer(question)))
    thread.start()
    thread.join(20)
    return found[0]


async def test_a_claim_that_was_asked_ahead_is_a_claim(store: Store) -> None:
    worker = store.worker()
    one, two = spec(0), spec(5)
    await store.admit(one)
    await store.admit(two)
    first = answered(worker, ask(worker))
    assert first is not None
    assert (first.id, store.running()) == (one.id, {one.id: worker.incarnation})
    second = answered(worker, ask(worker))
    assert second is not None
    assert second.id == two.id
    assert answered(worker, ask(worker)) is None


async def test_before_the_first_sign_of_life_nothing_is_sent_ahead(store: Store) -> None:
    """To connect could take long, and Celery's thread may not wait."""
    known = store.worker()
    worker = replace(known, claims=Claims(store.sync, store.reader, known.name, known.incarnation))
    job = spec()
    await store.admit(job)
    assert ask(worker) is None
    assert store.line() == [job.id]
    worker.beat()
    found = answered(worker, ask(worker))
    assert found is not None
    assert found.id == job.id


async def test_while_one_is_under_way_the_next_is_to_be_claimed_as_usual(store: Store) -> None:
    worker = store.worker()
    jobs = [spec(level) for level in range(3)]
    for job in jobs:
        await store.admit(job)
    first = ask(worker)
    assert ask(worker) is None
    found = [worker.claims.claim(), answered(worker, first)]
    assert {job.id for job in found if job} == {jobs[0].id, jobs[1].id}
    assert set(store.running()) == {jobs[0].id, jobs[1].id}


@pytest.mark.parametrize("trouble", ["the connection breaks", "the broker forgot the script"])
async def test_an_answer_that_is_lost_is_asked_for_again_and_is_the_same(store: Store, trouble: str) -> None:
    worker = store.worker()
    one, two = spec(0), spec(5)
    for job in (one, two):
        await store.jobs.admit(job, candidates("w1", expected_ms=1000), 1)
    if trouble == "the broker forgot the script":
        store.raw.script_flush()
    question = ask(worker)
    if trouble == "the connection breaks":
        assert any(store.running() for _ in range(10_000)), "it was carried out"
        store.raw.client_kill_filter(_type="normal", skipme=True)
    found = answered(worker, question)
    assert found is not None
    assert (found.id, found.attempt, store.running()) == (one.id, 1, {one.id: worker.incarnation})
    assert store.line() == [two.id]
    charged_ms = float(store.raw.hget(keys.attained("agent:k:agent"), "ms"))
    assert charged_ms == pytest.approx(1000, rel=0.01), "once"
    worker.beat(one.id)
    assert ask(worker) is not None, "there is a connection again"


async def test_the_answer_that_nobody_takes_blocks_nobody(store: Store) -> None:
    worker = store.worker()
    one, two = spec(0), spec(5)
    await store.admit(one)
    await store.admit(two)
    assert ask(worker) is not None
    worker.claims.drop()
    assert ask(worker) is None, "its connection was given up with the answer"
    worker.beat()
    found = answered(worker, ask(worker))
    assert found is not None
