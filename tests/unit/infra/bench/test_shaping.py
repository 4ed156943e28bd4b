"""Shapes become a trace that says the same: sizes add up, equal pieces stay equal, and each request follows the right
one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.bench.shaping import Shaping
from infra.bench.trace import Request
from scheduler.contract.deltas import StopReason
from tests.unit.infra.bench.shapes import shape, traced

pytestmark = pytest.mark.unit

names = st.integers(0, 11).map(lambda number: f"{number:012x}")
sizes = st.lists(st.integers(40, 4000), min_size=3, max_size=12)


@given(sizes=sizes, grown=st.lists(st.integers(1, 3), min_size=1, max_size=6))
def test_a_conversation_s_prompts_have_the_tokens_that_were_counted(sizes: list[int], grown: list[int]) -> None:
    """Each turn's pieces add up to what the engine counted, but for a token a piece."""
    pieces = [(f"{number:012x}", size) for number, size in enumerate(sizes)]
    ends = [min(len(pieces), 2 + sum(grown[:turn])) for turn in range(len(grown))]
    shapes = [shape("cccc", pieces[:end], turn) for turn, end in enumerate(ends)]
    trace = traced(*shapes)
    for prompt, request in zip(trace.prompts, trace.requests, strict=True):
        assert abs(sum(tokens for _, tokens in prompt) - request.prompt_tokens) <= len(prompt)
    assert [request.keeps for request in trace.requests[1:]] == ends[:-1]
    assert trace.numbers == list(range(len(ends)))


@given(
    prompts=st.lists(st.tuples(st.sampled_from(["cccc", "dddd"]), st.lists(names, min_size=2, max_size=6)), min_size=1)
)
def test_any_prompts_come_back_piece_by_piece_and_equal_pieces_have_equal_tokens(
    prompts: list[tuple[str, list[str]]],
) -> None:
    shapes = [shape(talk, [(name, 400) for name in pieces], at) for at, (talk, pieces) in enumerate(prompts)]
    trace = traced(*shapes)
    assert [[name for name, _ in prompt] for prompt in trace.prompts] == [pieces for _, pieces in prompts]
    tokens: dict[str, int] = {}
    for prompt in trace.prompts:
        for name, count in prompt:
            assert tokens.setdefault(name, count) == count


BASE = [("00", 4000), ("01", 400)]


def after(*shapes: dict[str, Any]) -> list[tuple[int | None, float]]:
    padded = [one | {"pieces": [[name.zfill(12), size] for name, size in one["pieces"]]} for one in shapes]
    return [(request.after, request.gap_s) for request in traced(*padded).requests]


def test_subagents_come_after_the_turn_that_started_them_and_the_next_turn_after_the_last_of_them() -> None:
    turn = shape("cccc", BASE, 1.0)
    first, second = shape("dddd", BASE, 2.0, kind="subagent"), shape("eeee", BASE, 2.2, kind="subagent", took_ms=900)
    following = shape("cccc", BASE, 3.0)
    assert after(turn, first, second, following) == [(None, 0.0), (0, 0.5), (0, 0.3), (2, 0.3)]


def test_sessions_do_not_wait_for_each_other() -> None:
    one, other = shape("cccc", BASE, 1.0), shape("dddd", BASE, 5.0, session="ffff")
    assert after(one, other) == [(None, 0.0), (None, 0.0)]


def test_what_was_not_answered_is_left_out_and_counted() -> None:
    shaping = Shaping(100.0)
    left = shape("cccc", BASE, 1.0, outcome="left")
    refused = {name: value for name, value in shape("cccc", BASE, 1.0, outcome="failed").items() if name != "queue_ms"}
    assert [shaping.request(left), shaping.request(refused)] == [None, None]
    assert (shaping.left_out, shaping.count) == (2, 0)


def test_a_line_holds_numbers_salted_names_and_words_of_ours() -> None:
    (request,) = traced(shape("cccc", [("0" * 12, 4), ("1" * 12, 4)], 1.0)).requests
    with pytest.raises(ValueError, match="conversation"):
        Request.model_validate(request.model_dump() | {"conversation": "fix the login page"})
    with pytest.raises(ValueError, match="new"):
        Request.model_validate(request.model_dump() | {"new": [("a text", 3)]})
    with pytest.raises(ValueError, match="text"):
        Request.model_validate(request.model_dump() | {"text": "x"})


@pytest.mark.parametrize("reason", [reason.value for reason in StopReason])
def test_however_an_answer_ends_its_request_is_recorded(reason: str) -> None:
    (request,) = traced(shape("cccc", [("00" * 6, 4000), ("01" * 6, 400)], 1.0, stop_reason=reason)).requests
    assert request.stop == reason
