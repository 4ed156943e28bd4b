"""Engine chunks become deltas in order, and one end."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import EngineGarbled, EngineLost, EngineRefused
from scheduler.contract import StopReason, TextDelta, ThinkingDelta, ToolCall
from workers.llama.parse import AnswerRules, ChunkParser, End, Prompt

pytestmark = pytest.mark.unit

RULES = AnswerRules(context_tokens=1000, tool_names=("Bash",))


def progress(total: int = 20, cached: int = 3) -> dict[str, Any]:
    return {
        "choices": [{"finish_reason": None, "index": 0, "delta": {"role": "assistant", "content": None}}],
        "prompt_progress": {"total": total, "cache": cached, "processed": cached, "time_ms": 0},
    }


def said(reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"finish_reason": reason, "index": 0, "delta": delta}]}


def call(arguments: str, index: int = 0) -> dict[str, Any]:
    return said(tool_calls=[{"index": index, "id": "x", "function": {"name": "Bash", "arguments": arguments}}])


def usage(output: int, prompt: int = 20) -> dict[str, Any]:
    return {
        "choices": [],
        "usage": {"completion_tokens": output, "prompt_tokens": prompt},
        "timings": {"cache_n": 3, "prompt_n": 17, "prompt_ms": 1.6, "predicted_n": output, "predicted_ms": 2.4},
    }


def answer(*chunks: dict[str, Any], rules: AnswerRules = RULES) -> tuple[list[Any], End]:
    parser = ChunkParser(rules)
    events: list[Any] = []
    for chunk in chunks:
        events += parser.feed(chunk)
        if parser.stopped:
            break
    return events, parser.end()


def test_a_plain_answer() -> None:
    events, end = answer(
        progress(), progress(), said(reasoning_content="Hm"), said(content="Yes"), said("stop"), usage(2)
    )

    assert events == [Prompt(20, 3), ThinkingDelta("Hm"), TextDelta("Yes")]
    assert end == End(StopReason.END_TURN, None, 20, 3, 2, prefill_ms=2, decode_ms=2)


def test_what_was_drafted_and_what_of_it_was_right() -> None:
    last = usage(9)
    last["timings"] |= {"draft_n": 12, "draft_n_accepted": 5}
    _, end = answer(progress(), said(content="Yes"), said("stop"), last)
    assert (end.drafted_tokens, end.accepted_tokens) == (12, 5)


def test_a_tool_call_is_one_delta_at_the_end() -> None:
    events, end = answer(progress(), said(content="Look:"), call('{"a"'), call(": 1}"), said("tool_calls"), usage(9))

    assert events[1] == TextDelta("Look:")
    assert isinstance(events[2], ToolCall)
    assert (events[2].name, events[2].arguments) == ("Bash", '{"a": 1}')
    assert len(events) == 3
    assert end.stop_reason is StopReason.TOOL_USE


def test_two_parallel_calls_keep_their_order_and_get_two_ids() -> None:
    events, _ = answer(progress(), call('{"a": 1}'), call('{"a": 2}', index=1), said("tool_calls"), usage(9))

    calls = [event for event in events if isinstance(event, ToolCall)]
    assert [one.arguments for one in calls] == ['{"a": 1}', '{"a": 2}']
    assert calls[0].id != calls[1].id


def test_a_call_cut_off_by_the_limit_is_dropped_and_the_limit_is_the_reason() -> None:
    events, end = answer(progress(), call('{"a": 1}'), call('{"b', index=1), said("length"), usage(9))

    assert [type(event) for event in events] == [Prompt, ToolCall]
    assert end.stop_reason is StopReason.MAX_TOKENS


def test_a_refused_call_is_no_tool_use() -> None:
    chunk = said(tool_calls=[{"index": 0, "function": {"name": "Nope", "arguments": "{}"}}])
    events, end = answer(progress(), chunk, said("tool_calls"), usage(9))

    assert isinstance(events[-1], TextDelta)
    assert end.stop_reason is StopReason.END_TURN


def test_a_full_window_is_told_from_max_tokens() -> None:
    _, end = answer(progress(990), said(content="x"), said("length"), usage(10, 990))
    assert end.stop_reason is StopReason.WINDOW

    _, end = answer(progress(980), said(content="x"), said("length"), usage(10, 980))
    assert end.stop_reason is StopReason.MAX_TOKENS


def test_a_stop_sequence_ends_the_answer_with_the_counts_so_far() -> None:
    rules = AnswerRules(context_tokens=1000, stop_sequences=("END",))
    counted = {**said(content="D and more"), "timings": {"cache_n": 3, "predicted_n": 7, "predicted_ms": 1.0}}

    events, end = answer(progress(), said(content="so EN"), counted, said(content="never"), rules=rules)

    assert events == [Prompt(20, 3), TextDelta("so ")]
    assert (end.stop_reason, end.stop_sequence, end.output_tokens) == (StopReason.STOP_SEQUENCE, "END", 7)


def test_text_held_back_comes_before_what_follows_it() -> None:
    rules = AnswerRules(context_tokens=1000, tool_names=("Bash",), stop_sequences=("END",))

    events, _ = answer(progress(), said(content="E"), call("{}"), said("tool_calls"), usage(3), rules=rules)

    assert events[1] == TextDelta("E")
    assert isinstance(events[2], ToolCall)


@pytest.mark.parametrize("error", [{"code": 500, "message": "boom\n  at x.cpp:1"}, "boom", {}])
def test_an_error_in_the_stream_is_the_engines_refusal_in_one_line(error: Any) -> None:
    with pytest.raises(EngineRefused) as caught:
        ChunkParser(RULES).feed({"error": error})

    assert "\n" not in caught.value.message


@given(st.text(alphabet="abEND ", max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_the_outcome_does_not_depend_on_how_the_engine_cuts_its_text(text: str, cuts: list[int]) -> None:
    rules = AnswerRules(context_tokens=1000, stop_sequences=("END", "aa"))
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [said(content=text[start:end]) for start, end in itertools.pairwise(bounds)]

    cut_events, cut_end = answer(progress(), *pieces, said("stop"), usage(5), rules=rules)
    events, end = answer(progress(), said(content=text), said("stop"), usage(5), rules=rules)

    assert _text(cut_events) == _text(events)
    assert (cut_end.stop_reason, cut_end.stop_sequence) == (end.stop_reason, end.stop_sequence)


def _text(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "!"},
        {"reasoning_content": "!"},
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "Bash", "arguments": "!"}}]},
    ],
)
def test_one_token_for_ever_is_garbage_wherever_it_stands(delta: dict[str, Any]) -> None:
    parser = ChunkParser(AnswerRules(context_tokens=100, tool_names=("Bash",), repeat_limit=5))
    for _ in range(5):
        parser.feed({"choices": [{"delta": delta}]})
    with pytest.raises(EngineGarbled, match="more than 5 times"):
        parser.feed({"choices": [{"delta": delta}]})


@pytest.mark.parametrize("words", ["Compute error.", "failed to decode the batch", "logits are nan"])
def test_an_engine_that_cannot_compute_is_lost_and_not_a_refusal(words: str) -> None:
    with pytest.raises(EngineLost, match="could not compute"):
        ChunkParser(AnswerRules(context_tokens=100)).feed({"error": {"code": 500, "message": words}})


def test_a_refusal_that_quotes_a_client_s_words_of_memory_is_a_refusal() -> None:
    with pytest.raises(EngineRefused):
        ChunkParser(AnswerRules(context_tokens=100)).feed({"error": {"code": 400, "message": "bad: 'out of memory'"}})


@pytest.mark.parametrize("words", ["CUDA error: out of memory", "vk::Device::allocateMemory: ErrorOutOfDeviceMemory"])
def test_an_engine_that_is_short_of_memory_does_not_refuse_and_the_words_say_what_to_do(words: str) -> None:
    with pytest.raises(EngineLost, match=f"{words}; lower --slots or --context"):
        ChunkParser(AnswerRules(context_tokens=100)).feed({"error": {"code": 500, "message": words}})
