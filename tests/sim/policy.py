"""What the simulated cluster asks of a policy.

Owns: the questions: where does a request go, which one does a worker serve next, what is learnt at the end.
Never: an answer; those are in `baselines` and `ours`.
"""

from collections.abc import Iterable
from typing import Protocol

from tests.sim.engine import Engine
from tests.sim.request import Request


class Worker:
    """One worker to a policy: its engine, and how many requests wait for it."""

    __slots__ = ("engine", "name", "number", "queued")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.number = engine.number
        self.name = f"w{engine.number}"
        self.queued = 0

    @property
    def busy(self) -> int:
        """Requests there, running or waiting."""
        return self.queued + len(self.engine.slots) - self.engine.free


class Policy(Protocol):
    """Made for one run. `now_s` is virtual time."""

    name: str

    def look(self, now_s: float, /) -> None:
        """Read anew what an API process reads of all workers once a second; called before a request is placed."""

    def place(self, request: Request, now_s: float, /) -> Worker:
        """The worker whose line a request joins; it waits there from now on."""

    def claim(self, worker: Worker, now_s: float, /) -> Request | None:
        """Take the request that a free slot of the worker serves next out of its line; None when none is to be."""

    def look_again_s(self, worker: Worker, now_s: float, /) -> float | None:
        """After a claim that took nothing though some wait: when to claim again, whatever happens."""

    def began(self, worker: Worker, request: Request, now_s: float, /) -> None:
        """A slot has taken the request."""

    def ended(self, worker: Worker, request: Request, now_s: float, /) -> None:
        """The answer is complete."""

    def moved(self, now_s: float, /) -> Iterable[Worker]:
        """Moves requests between lines, if that pays; returns the workers that got one."""
