"""Tool calls leave whole and valid, or are said in text."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.contract import TextDelta, ToolCall
from workers.llama.calls import CallAssembler, mended_arguments, new_call_id

pytestmark = pytest.mark.unit

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), json_values, max_size=4)


def assembler(*, parallel: bool = True) -> CallAssembler:
    return CallAssembler(("Bash", "Read"), parallel=parallel, make_id=lambda: "toolu_1")


def piece(index: int, name: str | None = None, arguments: str = "") -> dict[str, Any]:
    return {"index": index, "function": {"name": name, "arguments": arguments}}


def sent(*pieces: dict[str, Any], parallel: bool = True) -> list[ToolCall | TextDelta]:
    calls = assembler(parallel=parallel)
    return [delta for one in pieces for delta in calls.feed([one])] + calls.finish()


@given(objects, st.data())
def test_arguments_come_out_as_they_came_in_however_they_are_cut(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=False)
    cut = data.draw(st.integers(0, len(text)))

    deltas = sent(piece(0, "Bash", text[:cut]), piece(0, None, text[cut:]))

    assert deltas == [ToolCall("toolu_1", "Bash", text)]


@given(st.text(max_size=60))
def test_any_text_becomes_an_object_or_is_said_to_be_none(text: str) -> None:
    mended = mended_arguments(text)

    assert mended is None or isinstance(json.loads(mended), dict)


def test_a_call_goes_out_when_the_next_begins() -> None:
    calls = assembler()
    calls.feed([piece(0, "Bash", '{"a":1}')])

    assert calls.feed([piece(1, "Read", "{")]) == [ToolCall("toolu_1", "Bash", '{"a":1}')]


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        ("", {}),
        ('{"command": "ls",}', {"command": "ls"}),
        ('{"command": "ls"', {"command": "ls"}),
        ("{'command': 'ls'}", {"command": "ls"}),
        ('"{\\"command\\": \\"ls\\"}"', {"command": "ls"}),
    ],
)
def test_broken_arguments_are_mended(broken: str, mended: dict[str, Any]) -> None:
    assert json.loads(mended_arguments(broken) or "null") == mended


def test_arguments_beyond_repair_are_said_in_text() -> None:
    (delta,) = sent(piece(0, "Bash", "no json at all"))

    assert isinstance(delta, TextDelta)
    assert "`Bash`" in delta.text
    assert "no json at all" in delta.text


def test_a_name_that_differs_in_case_only_becomes_the_declared_one() -> None:
    assert sent(piece(0, "bash", "{}")) == [ToolCall("toolu_1", "Bash", "{}")]


def test_an_unknown_name_is_said_in_text() -> None:
    (delta,) = sent(piece(0, "Format", "{}"))

    assert isinstance(delta, TextDelta)
    assert "`Format`" in delta.text


def test_without_parallel_calls_only_the_first_is_kept() -> None:
    deltas = sent(piece(0, "Bash", "{}"), piece(1, "Read", "{}"), parallel=False)

    assert deltas == [ToolCall("toolu_1", "Bash", "{}")]


def test_a_call_cut_off_by_the_token_limit_is_dropped_and_never_mended() -> None:
    calls = assembler()
    calls.feed([piece(0, "Bash", '{"command": "rm -rf /tmp/x')])

    assert calls.finish_cut_off() == ([], True)


def test_a_call_complete_before_the_token_limit_is_kept() -> None:
    calls = assembler()
    calls.feed([piece(0, "Bash", "{}")])

    assert calls.finish_cut_off() == ([ToolCall("toolu_1", "Bash", "{}")], False)


def test_call_ids_are_unique() -> None:
    assert len({new_call_id() for _ in range(1000)}) == 1000
