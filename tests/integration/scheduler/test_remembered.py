"""The next turn of a conversation is placed by what this process remembers, and by the truth where that has changed."""

import pytest

from infra import keys
from scheduler.admitting import HomeMoved
from scheduler.jobs import Jobs, Limits
from scheduler.policy.lengths import Samples
from scheduler.policy.placement import Home
from scheduler.remembered import Remembered
from scheduler.turns import Turns
from tests.integration.scheduler.store import API, HOME_MS, Store, candidates, spec
from tests.integration.scheduler.test_dispatch import dispatching
from tests.integration.scheduler.test_turns import kept

pytestmark = pytest.mark.integration
C = "c1"


@pytest.fixture
async def turns(store: Store) -> Turns:
    """Turns that share their memory with the store's jobs; the conversation has had one turn at w1."""
    store.worker("w1")
    store.worker("w2")
    remembered = Remembered()
    store.jobs = Jobs(store.redis, API, Limits(queue=64, home_ms=HOME_MS), remembered)
    turns = Turns(store.redis, 60, remembered)
    await store.jobs.known(spec(conversation=C))
    await store.admit(spec(conversation=C), "w1")
    await turns.keep(kept())
    return turns


@pytest.mark.usefixtures("turns")
async def test_what_is_remembered_is_what_the_store_says(store: Store) -> None:
    job = spec(conversation=C)
    remembered = await store.jobs.known(job)
    assert remembered.remembered
    read = await store.jobs.known(job, fresh=True)
    assert (read.home, read.length, read.remembered) == (remembered.home, remembered.length, False)
    assert (await store.jobs.admit(job, candidates("w1"), 1, remembered)).worker == "w1"


@pytest.mark.usefixtures("turns")
async def test_lengths_are_those_of_the_last_admission(store: Store) -> None:
    store.raw.hset(keys.lengths("main:k:agent"), mapping={"n": 50, "mean": 5.0, "m2": 2.0})
    await store.jobs.admit(spec(conversation=C), candidates("w1"), 1)
    known = await store.jobs.known(spec(conversation=C))
    assert known.remembered
    assert known.length == (await store.jobs.known(spec(conversation=C), fresh=True)).length
    assert known.length.mu > 4.9


@pytest.mark.usefixtures("turns")
@pytest.mark.parametrize("change", ["moved", "grown", "gone"])
async def test_a_home_that_has_changed_since_admits_nothing(store: Store, change: str) -> None:
    job = spec(conversation=C)
    remembered = await store.jobs.known(job)
    if change == "moved":
        await store.admit(spec(conversation=C), "w2")
    elif change == "grown":
        store.raw.hset(keys.home(C), "tokens", 999)
    else:
        store.raw.delete(keys.home(C))
    before = store.line("w1"), store.line("w2")
    with pytest.raises(HomeMoved):
        await store.jobs.admit(job, candidates("w1", "w2"), 1, remembered)
    assert (store.line("w1"), store.line("w2"), store.state(job.id)) == (*before, None)


@pytest.mark.usefixtures("turns")
async def test_a_home_whose_first_answer_has_not_ended_is_the_same_too(store: Store) -> None:
    """An agent asks several things at once: the home of the first has no tokens yet."""
    first, second, third = (spec(conversation="new") for _ in range(3))
    await store.admit(first, "w1")
    await store.jobs.known(second)
    remembered = await store.jobs.known(third)
    assert remembered.remembered
    assert (await store.jobs.admit(third, candidates("w1"), 1, remembered)).worker == "w1"


@pytest.mark.usefixtures("turns")
async def test_a_turn_whose_home_was_moved_by_another_process_goes_to_the_new_one(store: Store) -> None:
    async with dispatching(store) as dispatcher:
        for number in range(4):  # by chance it would go there once
            home = f"w{number % 2 + 1}"
            assert (await store.jobs.known(spec(conversation=C))).home is not None
            store.raw.hset(keys.home(C), mapping={"worker": home, "tokens": 10**6 + number})
            job = spec(conversation=C).model_copy(update={"prompt_tokens": 10**6})
            async with dispatcher.submit(job) as placed:
                assert placed.worker == home
                assert store.state(job.id) == "queued"


async def test_an_answer_whose_home_has_moved_on_leaves_nothing_to_remember(turns: Turns, store: Store) -> None:
    await store.admit(spec(conversation=C), "w2")
    await turns.keep(kept(request="req_2"))
    assert not (await store.jobs.known(spec(conversation=C))).remembered


def test_only_so_many_are_remembered_and_those_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.remembered.MOST", 2)
    remembered = Remembered()
    a, b, c = (spec(conversation=name) for name in "abc")
    for job in (a, b):
        remembered.lengths(job, Samples(), Samples())
        remembered.lives(job.identity.conversation, Home("w1"))
    assert remembered.known(a)
    remembered.lives("c", Home("w1"))
    assert remembered.known(b) is None
    assert remembered.known(a)
    assert remembered.known(c)
