"""The gated pool: what a ticket is worked on in begins in Celery's thread and is entered in the ticket's own."""

import threading
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from workers.pool import GIVES_WAY_S, GatedPool

pytestmark = pytest.mark.unit


class Begun(nullcontext[None]):
    """Notes what is done with it, and by which thread."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, int]] = []

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
    assert {("begun", here), ("gave way", here), ("entered", there), ("left", there)} == set(begun.done)


def test_a_ticket_that_no_thread_takes_is_given_back(pool: GatedPool, begun: Begun) -> None:
    pool.executor.shutdown()
    with pytest.raises(RuntimeError):
        pool.apply_async(print)
    assert [what for what, _ in begun.done] == ["begun", "given back"]


def test_celery_books_a_ticket_before_it_is_worked_on(pool: GatedPool, begun: Begun) -> None:
    """Its acknowledgement is among them: a connection that breaks before that gives the ticket to another thread."""
    told: list[str] = []
    pool.apply_async(
        lambda: told.append("work"),
        accept_callback=lambda *_: told.append("books"),
        callback=lambda _: told.append("end"),
    ).f.result(20)
    assert told == ["books", "work", "end"]
