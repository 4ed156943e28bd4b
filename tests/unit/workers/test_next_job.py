"""A ticket's job: asked for ahead of its thread, taken once, and never forgotten."""

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from scheduler.claims import Claims, Question, SlotKept
from scheduler.contract import ClaimedJob, Kind
from scheduler.policy.claiming import Cached, Rules
from workers.next_job import NextJob
from workers.running import Running
from workers.serving import Serving

pytestmark = pytest.mark.unit
JOB = ClaimedJob("job-0", 1, 5, "me", "c", Kind.MAIN, 7, False, b"")


class Line:
    """Answers with one of `answers` after another, and keeps what was asked."""

    def __init__(self, *answers: ClaimedJob | int | None) -> None:
        self.answers = list(answers)
        self.rules = Rules()
        self.calls: list[tuple[str, int, int]] = []
        self.dropped = 0
        self.sends = True

    def ask(self, slots: int, tickets: int, cached: Sequence[Cached], token_ms: float) -> Question | None:
        assert (cached, token_ms) == ((), 4.0)
        self.calls.append(("ask", slots, tickets))
        return Question([], [], "") if self.sends else None

    def answer(self, _: Question) -> ClaimedJob | None:
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            raise SlotKept(answer)
        return answer

    def claim(self, slots: int, tickets: int, *_: object) -> ClaimedJob | None:
        self.calls.append(("claim", slots, tickets))
        return self.answer(Question([], [], ""))

    def drop(self) -> None:
        self.dropped += 1


class Engine:
    """An engine that is there, or away."""

    def __init__(self) -> None:
        self.slots = 2
        self.caches = None
        self.prefill_tokens_per_s = 250.0

    def usable_slots(self) -> int:
        return self.slots


class House:
    def __init__(self, *answers: ClaimedJob | int | None) -> None:
        self.line, self.engine, self.running = Line(*answers), Engine(), Running()
        serving = cast(Serving, cast(Any, self.engine))
        self.jobs = NextJob(cast(Claims, self.line), self.running, serving)

    def ticket(self) -> ClaimedJob | None:
        """A ticket that comes and is worked on by a thread of its own."""
        begun, found = self.jobs.begin(), list[ClaimedJob | None]()

        def work() -> None:
            with begun, self.jobs.work():
                found.append(self.jobs.take())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(20)
        return found[0]


def test_a_ticket_s_job_is_asked_for_once_before_its_thread_begins() -> None:
    house = House(JOB)
    assert house.ticket() == JOB
    assert (house.line.calls, house.line.dropped) == ([("ask", 2, 1)], 0), "and the ticket itself counts"


def test_without_a_beginning_the_line_is_asked_as_usual() -> None:
    house = House(JOB)
    with house.jobs.work():
        assert house.jobs.take() == JOB
    assert house.line.calls == [("claim", 2, 1)]


def test_a_claim_that_could_not_be_sent_is_made_with_what_is_true_later() -> None:
    house = House(JOB)
    house.line.sends = False
    begun = house.jobs.begin()
    house.engine.slots = 7
    with begun, house.jobs.work():
        assert house.jobs.take() == JOB
    assert house.line.calls == [("ask", 2, 1), ("claim", 7, 1)]


def test_a_ticket_is_work_from_its_beginning_to_its_end() -> None:
    """Or a drain would be over while its job is being claimed."""
    house = House(JOB, JOB)
    one, two = house.jobs.begin(), house.jobs.begin()
    assert house.line.calls == [("ask", 2, 1), ("ask", 2, 2)], "each counts those before it"
    for begun in (one, two):
        assert not house.running.wait_idle(0)
        with begun, house.jobs.work():
            house.jobs.take()
            assert not house.running.wait_idle(0)
    assert house.running.wait_idle(0)


def test_what_was_asked_is_answered_though_the_engine_went_away_meanwhile() -> None:
    """It may have claimed a job, which would lie about until it is missed."""
    house = House(JOB)
    begun = house.jobs.begin()
    house.engine.slots = 0
    with begun:
        assert house.jobs.take() == JOB


def test_while_the_engine_is_away_nothing_is_asked() -> None:
    house = House()
    house.engine.slots = 0
    assert house.ticket() is None
    assert house.line.calls == []


@pytest.mark.parametrize("kept", [1, 2])
def test_a_ticket_whose_slot_is_kept_waits_and_asks_again(kept: int) -> None:
    house = House(*[1] * kept, JOB)
    assert house.ticket() == JOB
    assert house.line.calls == [("ask", 2, 1), *[("claim", 2, 1)] * kept]


def test_a_change_between_question_and_answer_is_not_slept_through() -> None:
    house = House(60_000, JOB)
    begun = house.jobs.begin()
    house.running.change()
    with begun, house.jobs.work():
        assert house.jobs.take() == JOB


def test_a_ticket_that_nobody_works_on_takes_no_answer_and_leaves_none_to_the_next() -> None:
    house = House(JOB)
    with house.jobs.begin():
        pass
    assert house.line.dropped == 1
    assert house.running.wait_idle(0)
    with house.jobs.work():
        assert house.jobs.take() == JOB
    assert house.line.calls == [("ask", 2, 1), ("claim", 2, 1)]


def test_celery_s_thread_gives_way_until_the_engine_has_its_request() -> None:
    house = House(JOB)
    begun = house.jobs.begin()
    order: list[str] = []

    def work() -> None:
        with begun:
            house.jobs.take()
            order.append("sent")
            house.jobs.under_way()
            went_on.wait(20)

    went_on = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    assert begun.give_way(20)
    order.append("celery")
    went_on.set()
    thread.join(20)
    assert order == ["sent", "celery"]


@pytest.mark.parametrize("answers", [(None,), (60_000, None)], ids=["without a job", "while its slot is kept"])
def test_celery_s_thread_waits_for_no_ticket_that_waits_itself(answers: tuple[int | None, ...]) -> None:
    house = House(*answers)
    begun = house.jobs.begin()

    def work() -> None:
        with begun, house.jobs.work():
            house.jobs.take()

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.give_way(20)
    house.running.change()
    thread.join(20)
    assert house.line.answers == []
