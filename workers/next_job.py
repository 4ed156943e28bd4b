"""The best job of the line, for a ticket.

Owns: with what the line is asked; asking it while Celery still hands the ticket on, which takes as long as the answer;
and the wait of a ticket whose slot is kept from those that wait.
Never: what becomes of the job.
"""

import threading
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

from scheduler.claims import Claims, Question, SlotKept
from scheduler.contract import ClaimedJob
from scheduler.policy.claiming import Cached
from workers.keeping import worth_keeping
from workers.running import Running
from workers.serving import Serving


class NextJob:
    """One worker's, for all of its threads."""

    def __init__(self, claims: Claims, running: Running, serving: Serving) -> None:
        self._claims = claims
        self._running = running
        self._serving = serving
        self._begun = threading.local()

    def begin(self) -> "Begun":
        """For a ticket that was just taken, in Celery's own thread: it counts as work from here on, and its claim is on
        its way. Inside the block, in the ticket's thread, `take` has the answer."""
        with ExitStack() as work:
            work.enter_context(self._running.task())  # first: whoever drains the worker waits for what is claimed
            slots, seen = self._serving.usable_slots(), self._running.changes
            question = self._claims.ask(slots, self._running.tickets, *self._state()) if slots else None
            return Begun(self._claims, self._begun, question, seen, work.pop_all())

    def work(self) -> AbstractContextManager[object]:
        """What a ticket counts as work in, in its thread."""
        begun = self._ticket()
        return self._running.task() if begun is None else begun.work()

    def under_way(self) -> None:
        """In the ticket's thread: the engine has its request, and Celery's own thread may go on with other things."""
        if (begun := self._ticket()) is not None:
            begun.let_go()

    def _ticket(self) -> "Begun | None":
        found: Begun | None = getattr(self._begun, "ticket", None)
        return found

    def take(self) -> ClaimedJob | None:
        """The best job of the line; as long as a slot is kept from those that wait there, the ticket waits, too.

        None when there is none, or when the worker takes no tickets any more: the engine went away after this one was
        taken, and `recovery` replaces it once it is back, or the worker is being stopped.
        """
        begun = self._ticket()
        question = begun.question() if begun else None
        # What was asked already is answered all the same: it may have claimed a job.
        while (slots := self._serving.usable_slots()) or question:
            seen = begun.seen if begun and question else self._running.changes
            try:
                if question:
                    return self._claims.answer(question)
                return self._claims.claim(slots, self._running.tickets, *self._state())
            except SlotKept as kept:
                question = None
                self.under_way()
                self._running.wait_change(seen, kept.held_ms / 1000)
        return None

    def _state(self) -> tuple[tuple[Cached, ...], float]:
        """What the free slots hold that is worth keeping, and the prefill of a token, in ms."""
        cached = worth_keeping(self._serving.caches, self._claims.rules)
        return cached, 1000 / self._serving.prefill_tokens_per_s


class Begun:
    """The claim of one ticket; entered by the thread that works on it. One that nobody took is dropped at its end."""

    def __init__(
        self, claims: Claims, tickets: threading.local, question: Question | None, seen: int, work: ExitStack
    ) -> None:
        """`seen` are the changes of `Running` from before it was asked; `work` is left at the end."""
        self.seen = seen
        self._claims = claims
        self._tickets = tickets
        self._question = question
        self._work = work
        self._let_go = threading.Event()

    def give_way(self, limit_s: float) -> bool:
        """In Celery's own thread: wait until the ticket's thread waits for others, for `limit_s` at most; whether it
        does."""
        return self._let_go.wait(limit_s)

    def let_go(self) -> None:
        """The ticket's thread waits for others now."""
        self._let_go.set()

    def work(self) -> ExitStack:
        """That this ticket counts as work, for whoever ends it."""
        return self._work.pop_all()

    def question(self) -> Question | None:
        """What was asked, once."""
        question, self._question = self._question, None
        return question

    def __enter__(self) -> None:
        self._tickets.ticket = self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._tickets.ticket = None
        self.give_back()

    def give_back(self) -> None:
        """Nobody works on the ticket any more, or ever will."""
        self.let_go()
        with self._work:
            if self.question() is not None:
                self._claims.drop()
