"""Who takes in one answer: everybody has all of it, from its start, and it is wanted as long as anybody may want it."""

from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler import audience as module
from scheduler.audience import Audience, Reader
from scheduler.contract import Delta, Failed, Finished, StopReason, TextDelta

pytestmark = pytest.mark.unit

END = Finished(StopReason.END_TURN, None, 3, 0, 1, 1, 1, "hash", 1)
FAILURE = Failed("engine", "it broke")
NAMES = st.sampled_from(["anna", "berta", "carl"])


class Listening(RuleBasedStateMachine):
    """An audience beside the plainest model of one: what was said, and what each reader has of it."""

    exact = False

    def __init__(self) -> None:
        super().__init__()
        self.audience = Audience(keeps=True, exact=self.exact)
        self.said: list[Delta] = []
        self.heard: dict[Reader, list[Delta]] = {}
        self.left: dict[str, float] = {}
        self.now_s = 0.0

    @property
    def ended(self) -> bool:
        return bool(self.said) and isinstance(self.said[-1], Finished | Failed)

    @precondition(lambda self: self.audience.open)
    @rule()
    def join(self) -> None:
        self.heard[self.audience.join()] = []

    @precondition(lambda self: not self.ended)
    @rule(texts=st.lists(st.text(max_size=3), max_size=3))
    def say(self, texts: list[str]) -> None:
        self._put([TextDelta(text) for text in texts])

    @precondition(lambda self: not self.ended)
    @rule(last=st.sampled_from([END, FAILURE]))
    def end(self, last: Delta) -> None:
        self._put([TextDelta("last"), last])

    def _put(self, deltas: list[Delta]) -> None:
        self.audience.put(deltas)
        self.said += deltas

    @precondition(lambda self: self.heard)
    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(list(self.heard)))
        self.heard[reader] += reader.take_now()
        assert self.heard[reader] == self.said
        assert reader.ended == self.ended

    @precondition(lambda self: self.heard)
    @rule(data=st.data(), returns=st.none() | NAMES, for_s=st.integers(1, 5))
    def leave(self, data: st.DataObject, returns: str | None, for_s: int) -> None:
        reader = data.draw(st.sampled_from(list(self.heard)))
        self.audience.leave(reader)
        del self.heard[reader]
        if returns is not None:
            self.audience.expect(returns, self.now_s + for_s)
            self.left[returns] = max(self.now_s + for_s, self.left.get(returns, -inf))

    @rule(name=NAMES)
    def come_back(self, name: str) -> None:
        self.audience.expect_no_more(name)
        self.left.pop(name, None)

    @rule(by_s=st.integers(1, 3))
    def time_goes_by(self, by_s: int) -> None:
        self.now_s += by_s

    @invariant()
    def it_is_wanted_as_long_as_anybody_may_want_it(self) -> None:
        wanted = bool(self.heard) or any(until_s > self.now_s for until_s in self.left.values())
        assert (self.audience.held_until_s > self.now_s) == wanted
        assert self.audience.read == bool(self.heard)

    @invariant()
    def nobody_joins_an_answer_that_failed_or_that_somebody_has_to_its_end(self) -> None:
        if self._had() or (self.said and self.said[-1] is FAILURE):
            assert not self.audience.open

    def _had(self) -> bool:
        return any(reader.ended for reader in self.heard)


class ListeningToAnExactAnswer(Listening):
    """Its end does not close it, but the last of those who were there in time does."""

    exact = True

    def _had(self) -> bool:
        return self.ended and not self.left and all(reader.ended or reader.late for reader in self.heard)

    @invariant()
    def whoever_overlaps_may_join(self) -> None:
        assert self.audience.open == (not self._had() and not (self.said and self.said[-1] is FAILURE))


TestListeningToAnExactAnswer = ListeningToAnExactAnswer.TestCase
TestListeningToAnExactAnswer.settings = settings(deadline=None, max_examples=100)
TestListening = Listening.TestCase
TestListening.settings = settings(deadline=None, max_examples=100)


async def test_one_that_waits_is_given_what_comes() -> None:
    audience = Audience(keeps=True)
    reader = audience.join()
    assert await reader.take(0) == []
    audience.put([TextDelta("a")])
    assert await reader.take(60) == [TextDelta("a")]


async def test_one_that_is_woken_looks_again() -> None:
    audience = Audience(keeps=True)
    reader = audience.join()
    audience.wake()
    assert await reader.take(60) == []


def test_an_answer_that_is_nobody_elses_is_not_kept() -> None:
    audience = Audience(keeps=False)
    reader = audience.join()
    audience.put([TextDelta("a")])
    assert not audience.open
    assert reader.take_now() == [TextDelta("a")]


def test_an_answer_too_long_to_keep_goes_on_for_those_who_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 1000)
    audience = Audience(keeps=True)
    reader = audience.join()
    said: list[Delta] = [TextDelta("x" * 100) for _ in range(6)]
    for number, delta in enumerate(said):
        assert audience.open == (number < 5)
        audience.put([delta])
    audience.put([END])
    assert reader.take_now() == [*said, END]


def test_an_exact_answer_is_joined_while_one_who_was_there_in_time_still_reads() -> None:
    audience = Audience(keeps=True, exact=True)
    first, second = audience.join(), audience.join()
    audience.put([END])
    first.take_now()
    audience.leave(first)
    late = audience.join()
    open_before = audience.open
    second.take_now()
    assert (open_before, audience.open) == (True, False), "a late one keeps it open for nobody"
    assert late.take_now() == [END]


def test_an_exact_answer_that_failed_is_joined_by_nobody() -> None:
    audience = Audience(keeps=True, exact=True)
    audience.join()
    audience.put([FAILURE])
    assert not audience.open


def test_after_somebody_left_with_the_end_nobody_joins() -> None:
    audience = Audience(keeps=True)
    first, second = audience.join(), audience.join()
    audience.put([END])
    open_before = audience.open
    first.take_now()
    audience.leave(first)
    assert (open_before, audience.open) == (True, False)
    assert second.take_now() == [END]
