"""A job that the broker lost is submitted again by the API process that holds its client, and its answer goes on."""

import asyncio
from collections.abc import Callable

import pytest

from infra import keys
from infra.errors import BrokerDown
from scheduler.contract import (
    ClaimedJob,
    Delta,
    Finished,
    Kind,
    Started,
    StopReason,
    TextDelta,
    ToolCall,
    encode_deltas,
)
from scheduler.jobs import Jobs
from scheduler.placed import Placed
from scheduler.resubmitting import ATTEMPTS_APART
from tests.integration.scheduler.store import Store, Worker, spec
from tests.integration.scheduler.test_dispatch import WAIT_S, dispatching

pytestmark = pytest.mark.integration

STARTED = Started("w1", 0, 1, 0, 3, 0)
END = Finished(StopReason.END_TURN, None, 3, 0, 1, 1, 1, "hash", 1)


def write(worker: Worker, job: ClaimedJob, number: int, *deltas: Delta, final: str = "") -> bool:
    return worker.append(job, number, encode_deltas(deltas), final)


def claimed(worker: Worker) -> ClaimedJob:
    job = worker.claims.claim(slots=9)
    assert job is not None
    return job


async def come(placed: Placed, count: int) -> list[Delta]:
    found: list[Delta] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await placed.next(1)
    return found


def forgets(store: Store, worker: Worker) -> None:
    """The broker has lost everything, and the worker has said since that it lives."""
    store.raw.flushall()
    assert worker.beat() == {}


async def test_one_that_was_not_begun_is_asked_anew(store: Store) -> None:
    worker, job = store.worker(), spec()
    async with dispatching(store) as dispatcher, dispatcher.submit(job) as placed:
        assert not await placed.vanished()
        forgets(store, worker)
        assert not await placed.vanished()
        assert store.line() == [job.id]
        assert sum(store.tickets()) == 1
        again = claimed(worker)
        assert again.body == job.request.body
        assert worker.claims.past(again) == []
        assert write(worker, again, 1, STARTED, TextDelta("one"), END, final="done")
        assert await come(placed, 3) == [STARTED, TextDelta("one"), END]
    assert store.state(job.id) is None


async def test_one_that_was_begun_goes_on_from_what_its_client_was_told(store: Store) -> None:
    worker, job = store.worker(), spec()
    call = ToolCall("id", "Bash", "{}")
    async with dispatching(store) as dispatcher, dispatcher.submit(job) as placed:
        lost = claimed(worker)
        assert write(worker, lost, 1, STARTED)
        assert write(worker, lost, 2, TextDelta("one "), TextDelta("two"), call)
        await come(placed, 4)
        forgets(store, worker)
        assert not await placed.vanished()
        assert not write(worker, lost, 3, TextDelta("twice"))
        again = claimed(worker)
        assert again.attempt == ATTEMPTS_APART + 1
        assert worker.claims.past(again) == [STARTED, TextDelta("one two"), call]
        assert not write(worker, lost, 3, TextDelta("twice"))
        assert write(worker, again, 1, END, final="done")
        assert await come(placed, 1) == [END]


async def test_the_attempts_after_a_loss_are_counted_anew(store: Store) -> None:
    worker, job = store.worker(), spec()
    async with dispatching(store) as dispatcher, dispatcher.submit(job) as placed:
        forgets(store, worker)
        assert not await placed.vanished()
        for _ in range(2):
            assert worker.claims.give_up(claimed(worker))
        assert not worker.claims.give_up(claimed(worker))


async def lose_a_piece(store: Store, worker: Worker, lost: ClaimedJob) -> None:
    """The worker was told that its second entry stands; nobody has read it."""
    store.raw.xadd(keys.stream(lost.id), {"d": encode_deltas([TextDelta("three")])}, id=f"{lost.attempt}-3")


async def lose_the_end(store: Store, worker: Worker, lost: ClaimedJob) -> None:
    """What the client was told stands there no more when the next attempt goes on from what does."""
    store.raw.xtrim(keys.stream(lost.id), maxlen=0)
    assert worker.claims.give_up(lost)
    assert write(worker, claimed(worker), 1, TextDelta("one"))


@pytest.mark.parametrize("lose", [lose_a_piece, lose_the_end])
async def test_a_broker_that_came_back_without_its_last_writes_makes_no_gap_and_no_repetition(
    store: Store, lose: Callable[..., object]
) -> None:
    worker, job = store.worker(), spec()
    async with dispatching(store) as dispatcher, dispatcher.submit(job) as placed:
        lost = claimed(worker)
        assert write(worker, lost, 1, STARTED, TextDelta("one"))
        assert await come(placed, 2) == [STARTED, TextDelta("one")]
        await lose(store, worker, lost)  # type: ignore[misc]
        async with asyncio.timeout(WAIT_S):
            while store.state(job.id) != "queued":
                assert await placed.next(0.05) == []
                assert not await placed.vanished()
        again = claimed(worker)
        assert worker.claims.past(again) == [STARTED, TextDelta("one")]
        assert store.running() == {job.id: worker.incarnation}
        assert write(worker, again, 1, TextDelta(" two"), END, final="done")
        assert await come(placed, 2) == [TextDelta(" two"), END]


async def test_one_whose_record_ran_out_is_lost_and_not_asked_again(store: Store) -> None:
    """It has waited for another attempt until its end: nobody could go on with it."""
    store.worker()
    job = spec()
    async with dispatching(store) as dispatcher, dispatcher.submit(job) as placed:
        store.raw.pexpire(keys.job(job.id), 500)
        assert not await placed.vanished()
        async with asyncio.timeout(WAIT_S):
            while not await placed.vanished():
                assert await placed.next(0.05) == []
        assert store.state(job.id) is None


async def test_a_warm_up_that_is_lost_is_nobodys_loss(store: Store) -> None:
    worker = store.worker()
    async with dispatching(store) as dispatcher, dispatcher.submit(spec(kind=Kind.WARM), only="w1") as placed:
        forgets(store, worker)
        assert await placed.vanished()


async def test_one_that_nobody_can_take_yet_is_asked_again_later(store: Store) -> None:
    job = spec()
    worker = store.worker()
    async with dispatching(store) as dispatcher, dispatcher.submit(job) as placed:
        store.raw.flushall()  # and no worker has said since that it lives
        assert not await placed.vanished()
        assert store.state(job.id) is None
        assert worker.beat() == {}
        assert not await placed.vanished()
        assert store.line() == [job.id]


async def test_a_submission_that_was_cut_in_the_middle_is_made_once_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, job = store.worker(), spec()
    async with dispatching(store) as dispatcher, dispatcher.submit(job) as placed:
        forgets(store, worker)
        admit = Jobs.admit

        async def cut(*arguments: object, **named: object) -> None:
            monkeypatch.setattr(Jobs, "admit", admit)
            raise BrokerDown("it was carried out, or was not")

        monkeypatch.setattr(Jobs, "admit", cut)
        with pytest.raises(BrokerDown):
            await placed.vanished()
        assert not await placed.vanished()
        assert claimed(worker).attempt == 2 * ATTEMPTS_APART + 1


async def test_two_who_read_one_answer_submit_it_once(store: Store) -> None:
    worker, job = store.worker(), spec()
    async with dispatching(store) as dispatcher, dispatcher.submit(job) as placed:
        forgets(store, worker)
        assert not any(await asyncio.gather(placed.vanished(), placed.vanished()))
        assert claimed(worker).attempt == ATTEMPTS_APART + 1
        assert worker.claims.claim(slots=9) is None


async def test_one_who_hears_late_that_a_job_was_lost_does_not_submit_it_once_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two who read one answer, the slower one hears of the loss when the other has submitted the job already."""
    worker, job, whereabouts = store.worker(), spec(), Jobs.whereabouts
    asked, heard = asyncio.Event(), asyncio.Event()

    async def late(jobs: Jobs, job_id: str) -> tuple[str, float, bool] | None:
        found = await whereabouts(jobs, job_id)
        asked.set()
        await heard.wait()
        return found

    async with dispatching(store) as dispatcher, dispatcher.submit(job) as placed:
        forgets(store, worker)
        monkeypatch.setattr(Jobs, "whereabouts", late)
        slow = asyncio.ensure_future(placed.vanished())
        await asked.wait()
        monkeypatch.setattr(Jobs, "whereabouts", whereabouts)
        assert not await placed.vanished()
        heard.set()
        assert not await slow
        assert claimed(worker).attempt == ATTEMPTS_APART + 1
