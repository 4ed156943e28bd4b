"""The deadlines of one answer, on the gateway's clock from the request's arrival.

Owns: when the whole answer is late, and when it has not even begun in time.
Never: the silence of an engine that is at work, which only the worker sees: a call is written unseen and sent when
complete.
"""

from collections.abc import Callable
from math import inf
from time import monotonic

from infra.errors import DeadlinePassed, TooSlow
from scheduler.contract import Limits


class Deadlines:
    """`longest_s` holds for everybody, `limits` are the client's own."""

    def __init__(self, limits: Limits, longest_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._total_s = min(longest_s, limits.total_s or inf)
        self._first_token_s = limits.first_token_s or inf
        self._began_s = clock()
        self._ends_s = self._began_s + self._total_s
        self._first_by_s = self._began_s + self._first_token_s
        self._between_tokens_s = limits.between_tokens_s or inf
        self._next_by_s = self._first_by_s

    def begun(self) -> None:
        """The engine has the prompt; from here on the worker keeps to the limits of tokens."""
        self._first_by_s = inf

    def told(self) -> None:
        """A part of the answer has come."""
        self._next_by_s = self._clock() + self._between_tokens_s

    def waits(self) -> None:
        """It waits for another attempt, so nobody else keeps to the limits of tokens. Raises TooSlow."""
        if self._clock() >= self._next_by_s:
            raise TooSlow("the answer was lost, and does not go on in the time that the request allows; ask again")

    def left_s(self) -> float:
        """Seconds to the next deadline, above zero. Raises DeadlinePassed or TooSlow when it has passed."""
        now_s = self._clock()
        if now_s >= self._ends_s:
            raise DeadlinePassed(f"the answer was not complete within {self._total_s:g} s")
        if now_s >= self._first_by_s:
            raise TooSlow(f"the answer did not begin within the {self._first_token_s:g} s that the request allows")
        return min(self._ends_s, self._first_by_s) - now_s
