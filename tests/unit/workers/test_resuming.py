"""What an attempt after the first asks of the engine, and what of it the client is told."""

from typing import Any, cast

import pytest

from infra.errors import CallMayBeLost, EngineRefused
from scheduler.claims import Claims
from scheduler.contract import (
    ClaimedJob,
    Delta,
    Finished,
    GenerationRequest,
    Kind,
    Limits,
    Message,
    Started,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    Tool,
    ToolCall,
    ToolChoice,
)
from workers.llama.client import Prompt
from workers.resuming import Over, Resumed, resume
from workers.serving import Serving

pytestmark = pytest.mark.unit

CONTEXT, PROMPT_TOKENS = 1000, 50
AROUND = 7  # tokens that the template writes around a message, the same whatever it says
HELLO = Message(role="user", content=(TextBlock(text="hello"),))
BASH = Tool(name="Bash", input_schema={"type": "object"})
FIRST = Started("w0", 3, 1, 20, PROMPT_TOKENS, 40)


class Engine:
    """Counts a word as a token."""

    model_hash, context_tokens = "hash", CONTEXT

    def __init__(self, trims: bool | None = True) -> None:
        """`trims`: its template cuts blanks off; None: it cannot say."""
        self.trims = trims

    def engine_bytes(self) -> int:
        return 5

    def count(self, request: GenerationRequest) -> int:
        content = request.messages[-1].content
        texts = [block.text for block in content if isinstance(block, TextBlock)]
        thoughts = [block.thinking for block in content if isinstance(block, ThinkingBlock)]
        return PROMPT_TOKENS + AROUND + len("".join(texts).split()) + len("".join(thoughts).split())

    def ends_with(self, request: GenerationRequest, text: str) -> bool:
        if self.trims is None:
            raise EngineRefused("no such route", status=404)
        last = request.messages[-1].content[-1]
        assert isinstance(last, TextBlock)
        return (last.text.rstrip() if self.trims else last.text).endswith(text)


class Past:
    """A store that holds what was told."""

    def __init__(self, *deltas: Delta) -> None:
        self.deltas = list(deltas)

    def past(self, _: ClaimedJob) -> list[Delta]:
        return self.deltas


def tried_again(*deltas: Delta, max_tokens: int = 100, trims: bool | None = True, **fields: Any) -> Resumed | Over:
    request = GenerationRequest(model="m", messages=(HELLO,), max_tokens=max_tokens, **fields)
    job = ClaimedJob("job", 2, 5, "me", "c", Kind.MAIN, 0, False, b"")
    return resume(cast(Claims, Past(*deltas)), cast(Serving, cast(Any, Engine(trims))), job, request)


def resumed(*deltas: Delta, max_tokens: int = 100, trims: bool | None = True, **fields: Any) -> Resumed:
    found = tried_again(*deltas, max_tokens=max_tokens, trims=trims, **fields)
    assert isinstance(found, Resumed)
    return found


def over(*deltas: Delta, max_tokens: int = 100) -> Over:
    found = tried_again(*deltas, max_tokens=max_tokens)
    assert isinstance(found, Over)
    return found


def finished(output_tokens: int) -> Finished:
    return Finished(StopReason.END_TURN, None, 90, 80, output_tokens, 1, 1, "hash", 5)


@pytest.mark.parametrize("deltas", [[], [FIRST], [FIRST, ThinkingDelta("hm")]])
def test_where_no_text_was_told_the_request_is_asked_as_it_came(deltas: list[Delta]) -> None:
    again = resumed(*deltas)
    assert again.request.messages == (HELLO,)
    assert (again.request.max_tokens, again.said_tokens) == (100, 0)
    assert again.outward(finished(9)) == finished(9)


def test_what_was_told_is_the_beginning_and_counts() -> None:
    again = resumed(FIRST, TextDelta("one two "), TextDelta("three "))
    assert again.request.messages == (
        HELLO,
        Message(role="assistant", content=(TextBlock(text="one two three"),)),
    )
    assert (again.said_tokens, again.request.max_tokens) == (3, 97)
    assert again.outward(TextDelta(" four")) == TextDelta("four")


@pytest.mark.parametrize(
    ("trims", "begins", "told"), [(False, "one \n", " b"), (True, "one", " b"), (None, "one", " b")]
)
def test_blanks_are_given_to_an_engine_that_keeps_them_and_never_told_twice(
    trims: bool | None, begins: str, told: str
) -> None:
    again = resumed(FIRST, TextDelta("one \n"), trims=trims)
    assert again.request.messages[-1].content == (TextBlock(text=begins),)
    whole = "one \n b"
    assert again.outward(TextDelta(whole.removeprefix(begins))) == TextDelta(told)


def test_thoughts_before_the_text_count_too() -> None:
    again = resumed(FIRST, ThinkingDelta("well well well"), TextDelta("one two"))
    assert (again.said_tokens, again.request.max_tokens) == (5, 95)


def test_usage_is_that_of_one_answer_to_the_clients_prompt() -> None:
    again = resumed(FIRST, TextDelta("one two three"))
    second = Started("w1", 0, 2, 99_999, PROMPT_TOKENS + 12, PROMPT_TOKENS + 11)
    assert again.outward(second) == Started("w1", 0, 2, FIRST.queue_ms, PROMPT_TOKENS, PROMPT_TOKENS)
    last = again.outward(finished(4))
    assert isinstance(last, Finished)
    assert (last.prompt_tokens, last.cached_tokens, last.output_tokens) == (PROMPT_TOKENS, PROMPT_TOKENS, 7)


def test_an_end_where_a_call_may_have_been_lost_is_an_error_and_no_end() -> None:
    again = resumed(FIRST, TextDelta("I look."), tools=(BASH,))
    with pytest.raises(CallMayBeLost, match="a tool call may have followed"):
        again.outward(finished(1))


ASKED = GenerationRequest(model="m", messages=(HELLO,), max_tokens=100, tools=(BASH,))
THOUGHT: tuple[Delta, ...] = (FIRST, ThinkingDelta("Hm."), TextDelta("I look."))
CALL = ToolCall("t", "Bash", "{}")


def told_again(*deltas: Delta) -> list[Delta]:
    """What the client is told of an answer that is made again after THOUGHT."""
    again = resumed(*THOUGHT, tools=(BASH,)).made_again(ASKED)
    assert (again.request, again.said_tokens) == (ASKED, 0)
    return [new for delta in deltas if (new := again.outward(delta)) is not None]


@pytest.mark.parametrize("end", [(finished(9),), (CALL, finished(9)), (TextDelta(" Now."), CALL, finished(9))])
def test_an_answer_that_is_made_again_and_says_the_same_goes_on_from_there(end: tuple[Delta, ...]) -> None:
    second = Started("w1", 0, 2, 0, PROMPT_TOKENS, 0)
    same = (second, ThinkingDelta("H"), ThinkingDelta("m."), TextDelta("I lo"), TextDelta("ok."))
    assert told_again(*same, *end) == [*end]


@pytest.mark.parametrize(
    "other",
    [
        (ThinkingDelta("Well."),),
        (TextDelta("I look."),),
        (ThinkingDelta("Hm."), TextDelta("I see.")),
        (ThinkingDelta("Hm."), TextDelta("I lo"), finished(9)),
        (ThinkingDelta("Hm."), TextDelta("I lo"), CALL),
        (ThinkingDelta("Hm."), CALL),
    ],
)
def test_an_answer_that_is_made_again_and_says_something_else_is_an_error(other: tuple[Delta, ...]) -> None:
    with pytest.raises(CallMayBeLost, match="ask again"):
        told_again(*other)


@pytest.mark.parametrize("more", [TextDelta(" More."), CALL])
def test_an_end_after_more_is_an_end(more: Delta) -> None:
    again = resumed(FIRST, TextDelta("I look."), tools=(BASH,))
    assert again.outward(more) == more
    assert isinstance(again.outward(finished(1)), Finished)


def test_without_tools_no_call_can_have_been_lost() -> None:
    assert isinstance(resumed(FIRST, TextDelta("I look.")).outward(finished(1)), Finished)


def test_where_calls_are_forbidden_none_can_have_been_lost() -> None:
    again = resumed(FIRST, TextDelta("I look."), tools=(BASH,), tool_choice=ToolChoice(mode="none"))
    assert isinstance(again.outward(finished(1)), Finished)


def test_the_slots_books_are_told_of_the_clients_prompt_alone() -> None:
    again = resumed(FIRST, TextDelta("one two three"))
    assert again.without_beginning(Prompt(53, 53)) == Prompt(50, 50)
    assert again.without_beginning(Prompt(53, 20)) == Prompt(50, 20)


def test_after_a_finished_call_there_is_only_the_end() -> None:
    found = over(FIRST, TextDelta("I look."), ToolCall("t1", "Bash", "{}"))
    assert found.started == Started("w0", 3, 2, 20, PROMPT_TOKENS, 40)
    assert (found.end.stop_reason, found.end.prompt_tokens, found.end.cached_tokens) == (
        StopReason.TOOL_USE,
        PROMPT_TOKENS,
        40,
    )


def test_an_answer_that_was_told_up_to_its_limit_ends_with_it() -> None:
    found = over(FIRST, TextDelta("one two three"), max_tokens=3)
    assert (found.end.stop_reason, found.end.output_tokens) == (StopReason.MAX_TOKENS, 3)


def test_an_answer_that_was_told_up_to_the_windows_end_ends_with_it() -> None:
    told = " ".join(["word"] * (CONTEXT - PROMPT_TOKENS))
    found = over(FIRST, TextDelta(told), max_tokens=5000)
    assert (found.end.stop_reason, found.end.output_tokens) == (StopReason.WINDOW, CONTEXT - PROMPT_TOKENS)


def test_only_an_answers_own_beginning_may_fill_the_window() -> None:
    serving = cast(Serving, cast(Any, Engine()))
    assert resumed(FIRST).at_window_end(serving) is None
    end = resumed(FIRST, TextDelta("one two")).at_window_end(serving)
    assert end is not None
    assert (end.stop_reason, end.output_tokens, end.prompt_tokens) == (StopReason.WINDOW, 2, PROMPT_TOKENS)


def test_the_first_token_of_an_answer_that_goes_on_was_told_before_and_its_next_one_is_waited_for() -> None:
    limits = Limits(total_s=60, first_token_s=1, between_tokens_s=9)
    request = GenerationRequest(model="m", messages=(HELLO,), max_tokens=100, limits=limits)
    job = ClaimedJob("job", 2, 5, "me", "c", Kind.MAIN, 7000, False, b"")
    waited = {}
    pasts: dict[str, list[Delta]] = {"new": [FIRST], "begun": [FIRST, TextDelta("one ")]}
    for name, deltas in pasts.items():
        found = resume(cast(Claims, Past(*deltas)), cast(Serving, cast(Any, Engine())), job, request)
        assert isinstance(found, Resumed)
        waited[name] = (found.waited_s(job), found.request.limits.first_token_s)
    assert waited == {"new": (7, 1), "begun": (0, 9)}
