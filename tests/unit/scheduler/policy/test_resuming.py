"""An answer that another attempt goes on with is told once and whole, wherever it was cut."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given as for_any
from hypothesis import strategies as st

from scheduler.contract import (
    Delta,
    Finished,
    GenerationRequest,
    Message,
    Started,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolCall,
)
from scheduler.policy.resuming import Said, Seam, given, goes_on, retold, said

pytestmark = pytest.mark.unit

TEXTS = st.text(alphabet="ab \n\té👩", max_size=30)
CALL = ToolCall("t1", "Bash", '{"command": "ls"}')
END = Finished(StopReason.END_TURN, None, 1, 0, 1, 1, 1, "h", 1)


def started(attempt: int = 1) -> Started:
    return Started("w1", 0, attempt, 0, 10, 4)


def asked(*messages: Message) -> GenerationRequest:
    hello = Message(role="user", content=(TextBlock(text="hello"),))
    return GenerationRequest(model="m", messages=(hello, *messages), max_tokens=100)


def pieces(text: str, cuts: Iterable[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def beginning(request: GenerationRequest) -> str:
    """The text of the answer that the engine is given to go on from."""
    last = request.messages[-1]
    assert last.role == "assistant"
    return "".join(block.text for block in last.content if isinstance(block, TextBlock))


def told(seam: Seam, deltas: Iterable[Delta]) -> list[Delta]:
    return [new for delta in deltas if (new := seam.new(delta)) is not None]


CUTS = st.lists(st.integers(0, 100), max_size=5)


@for_any(whole=TEXTS, cut=st.integers(0, 30), cuts=CUTS, blanks=st.booleans())
def test_a_text_cut_anywhere_is_told_once_and_whole(whole: str, cut: int, cuts: list[int], blanks: bool) -> None:
    """The engine is greedy: from any beginning of its answer it goes on to the same end."""
    past = said([started(), TextDelta(whole[:cut])])
    request = given(asked(), past, 0, blanks=blanks)
    begun = beginning(request) if goes_on(past) else ""
    assert blanks or begun == begun.rstrip()  # what templates would cut off is not in it
    rest = told(Seam.after(past, blanks=blanks), map(TextDelta, pieces(whole[len(begun) :], cuts)))
    assert said([TextDelta(past.text), *rest]).text == whole


@for_any(whole=TEXTS, first=st.integers(0, 30), second=st.integers(0, 30), blanks=st.booleans())
def test_a_text_cut_twice_is_told_once_and_whole(whole: str, first: int, second: int, blanks: bool) -> None:
    stream: list[Delta] = []
    for until in (first, max(first, second), len(whole)):
        past = said(stream)
        begun = beginning(given(asked(), past, 0, blanks=blanks)) if goes_on(past) else ""
        stream += told(
            Seam.after(past, blanks=blanks), [started(), TextDelta(whole[len(begun) : max(until, len(begun))])]
        )
    assert said(stream).text == whole


@for_any(thoughts=TEXTS, text=TEXTS, cut=st.integers(0, 30), cuts=CUTS)
def test_thoughts_that_are_thought_again_have_no_seam(thoughts: str, text: str, cut: int, cuts: list[int]) -> None:
    past = said([started(), ThinkingDelta(thoughts[:cut])])
    assert not goes_on(past)
    assert given(asked(), past, 0, blanks=False) == asked()
    again: list[Delta] = [ThinkingDelta(piece) for piece in pieces(thoughts, cuts)]
    again += [TextDelta(piece) for piece in pieces(text, cuts)]
    whole = said([ThinkingDelta(past.thinking), *told(Seam.after(past, blanks=False), again)])
    assert (whole.thinking, whole.text) == (thoughts, text)


@for_any(seen=TEXTS, again=TEXTS, cuts=CUTS)
def test_thoughts_that_come_out_another_way_are_told_from_where_they_differ(
    seen: str, again: str, cuts: list[int]
) -> None:
    """Nothing of what is thought now and was not told gets lost."""
    news = said(told(Seam(thinking=seen), map(ThinkingDelta, pieces(again, cuts)))).thinking
    assert again.endswith(news)
    assert seen.startswith(again[: len(again) - len(news)])


@for_any(own=TEXTS, before=TEXTS)
def test_a_clients_own_beginning_and_what_was_told_are_one_beginning(own: str, before: str) -> None:
    request = asked(Message(role="assistant", content=(TextBlock(text=own),)))
    past = said([started(), TextDelta(before)])
    went_on = given(request, past, 0, blanks=False)
    assert len(went_on.messages) == len(request.messages)
    assert went_on.messages[:-1] == request.messages[:-1]
    assert beginning(went_on) == own + (before.rstrip() if before.strip() else "")


def test_what_was_thought_before_the_text_goes_along() -> None:
    past = said([started(), ThinkingDelta("Hm, "), ThinkingDelta("so."), TextDelta("It is ")])
    message = given(asked(), past, 30, blanks=False).messages[-1]
    assert message.content == (ThinkingBlock(thinking="Hm, so."), TextBlock(text="It is"))


@pytest.mark.parametrize(("said_tokens", "left"), [(0, 100), (30, 70), (99, 1), (200, 1)])
def test_only_what_is_left_of_the_limit_may_be_written(said_tokens: int, left: int) -> None:
    assert given(asked(), Said(text="a"), said_tokens, blanks=True).max_tokens == left


def test_the_first_attempt_says_how_long_the_prompt_was() -> None:
    first = started(1)
    assert said([first, TextDelta("a"), started(2), TextDelta("b")]).started == first


def test_a_finished_call_ends_the_answer() -> None:
    past = said([started(), TextDelta("I look."), CALL])
    assert past.calls == (CALL,)
    assert not goes_on(past)
    assert past.characters == len("I look." + "Bash" + CALL.arguments)


@pytest.mark.parametrize("delta", [CALL, END, started(2)])
def test_all_but_words_passes_the_seam_as_it_is(delta: Delta) -> None:
    assert Seam(thinking="seen", text="seen").new(delta) == delta


def test_of_nothing_there_is_nothing_to_go_on_from() -> None:
    assert said([]).nothing
    assert said([started()]).nothing
    assert not said([started(), TextDelta(" ")]).nothing


@for_any(thinking=TEXTS, text=TEXTS, calls=st.integers(0, 2), begun=st.booleans())
def test_what_is_told_again_in_short_says_the_same(thinking: str, text: str, calls: int, begun: bool) -> None:
    past = Said(started() if begun else None, thinking, text, (CALL,) * calls)
    assert said(retold(past)) == past
