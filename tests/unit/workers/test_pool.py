"""The gated pool: what a ticket is worked on in begins in Celery's thread and is entered in the ticket's own."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial

import pytest

from workers.pool import GIVES_WAY_S, GatedPool

pytestmark = pytest.mark.unit


class Begun(nullcontext[None]):
    """Notes what is done with it, and by which thread."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, int]] = []
        self.acts: list[Callable[[], None]] = []

    def note(self, what: str) -> None:
        self.done.append((what, threading.get_ident()))

    def __enter__(self) -> None:
        self.note("entered")

    def __exit__(self, *_: object) -> None:
        self.note("left")

    def give_way(self, limit_s: float) -> bool:
        assert limit_s == GIVES_WAY_S
        self.note("gave way")
        return True

    def give_back(self) -> None:
        self.note("given back")

    def later(self, act: Callable[[], None]) -> None:
        self.acts.append(act)

    def let_go(self) -> None:
        self.note("let go")
        while self.acts:
            self.acts.pop()()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Begun:
    made = Begun()

    def begin() -> Begun:
        made.note("begun")
        return made

    monkeypatch.setattr(GatedPool, "begin", staticmethod(begin))
    return made


@pytest.fixture
def pool() -> Iterator[GatedPool]:
    made = GatedPool(1)
    made.start()
    yield made
    made.executor.shutdown()


def test_a_ticket_begins_here_and_is_worked_on_there(pool: GatedPool, begun: Begun) -> None:
    worked: list[int] = []
    pool.apply_async(lambda: worked.append(threading.get_ident()), callback=lambda _: None).f.result(20)
    here, there = threading.get_ident(), worked[0]
    assert here != there
    assert {("begun", here), ("gave way", here), ("entered", there), ("let go", there), ("left", there)} == set(
        begun.done
    )


@pytest.mark.parametrize("urgent", [True, False], ids=["it lets go itself", "it never does"])
def test_celery_hears_of_the_start_after_what_is_urgent_and_before_the_end(
    pool: GatedPool, begun: Begun, *, urgent: bool
) -> None:
    told: list[str] = []

    def work() -> None:
        told.append("urgent")
        if urgent:
            begun.let_go()
            told.append("the rest")

    def accepted(pid: int, _: float) -> None:
        assert pid == os.getpid()
        told.append("start")

    pool.apply_async(work, accept_callback=accepted, callback=lambda _: told.append("end")).f.result(20)
    assert told == ["urgent", "start", *(["the rest"] if urgent else []), "end"]


def test_celery_hears_of_the_start_of_one_that_fails(pool: GatedPool, begun: Begun) -> None:  # set up
    told: list[int] = []

    def work() -> None:
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        pool.apply_async(work, accept_callback=lambda pid, _: told.append(pid), callback=print).f.result(20)
    assert told == [os.getpid()]


def test_without_anything_begun_celery_hears_of_the_start_all_the_same(pool: GatedPool) -> None:
    told: list[str] = []
    accepted = partial(told.append, "start")
    pool.apply_async(print, accept_callback=lambda *_: accepted(), callback=lambda _: told.append("end")).f.result(20)
    assert told == ["start", "end"]


def test_a_ticket_that_no_thread_takes_is_given_back(pool: GatedPool, begun: Begun) -> None:
    pool.executor.shutdown()
    with pytest.raises(RuntimeError):
        pool.apply_async(print)
    assert [what for what, _ in begun.done] == ["begun", "given back"]
