"""System text, tools and tool choice: what all turns of a conversation share."""

from typing import Any

import pytest

from api.protocol import prefix
from api.protocol.schema import MessagesRequest, validated
from infra.errors import BadRequest
from scheduler.contract import Tool, ToolChoice

pytestmark = pytest.mark.unit

ATTRIBUTION = "x-anthropic-billing-header: cc_version=2.1.197.1c0; cc_entrypoint=cli;"
BASH = {"name": "Bash", "description": "runs", "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}


def sent(**fields: Any) -> MessagesRequest:
    return validated({"messages": [{"role": "user", "content": "a"}], **fields})


def system_of(system: Any, removed: tuple[str, ...] = ()) -> str:
    return prefix.system_text(sent(system=system).system, list(removed))[0]


def choice_of(choice: Any, tools: list[dict[str, Any]]) -> ToolChoice:
    body = sent(tool_choice=choice, tools=tools)
    return prefix.tool_choice(body.tool_choice, *prefix.split_tools(body.tools))


def blocks(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": words} for words in texts]


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        (None, ""),
        ("", ""),
        ("You help.\n", "You help.\n"),
        (blocks("You help.\n"), "You help.\n"),
        (blocks("One.", " ", "Two."), "One.\n\nTwo."),
        (blocks(ATTRIBUTION, "One.", "Two."), "One.\n\nTwo."),
        (blocks(f"{ATTRIBUTION}\nOne."), "One."),
        (f"{ATTRIBUTION}\nOne.\nTwo.", "One.\nTwo."),
        (ATTRIBUTION, ""),
        (f"Of {ATTRIBUTION}", f"Of {ATTRIBUTION}"),
    ],
)
def test_system_text_is_one_text_without_attribution(system: Any, expected: str) -> None:
    assert system_of(system) == expected


@pytest.mark.parametrize(
    ("system", "dropped"),
    [
        (None, 0),
        (blocks("One.", "Two."), 0),
        (blocks(ATTRIBUTION, "One."), len(ATTRIBUTION)),
        (f"{ATTRIBUTION}\nOne.", len(ATTRIBUTION) + 1),
    ],
)
def test_the_characters_of_the_attribution_are_counted(system: Any, dropped: int) -> None:
    assert prefix.system_text(sent(system=system).system, [])[1] == dropped


def test_removed_tools_are_named_at_the_end_of_the_system_text() -> None:
    note = "These tools are not available here and must not be called: web_search, web_fetch."
    assert system_of("You help.", ("web_search", "web_fetch")) == f"You help.\n\n{note}"
    assert system_of(None, ("web_search", "web_fetch")) == note


def test_tools_keep_their_order_and_lose_what_the_engine_does_not_know() -> None:
    tools = [BASH | {"strict": True, "cache_control": {"type": "ephemeral"}}, {"name": "Read", "input_schema": {}}]
    assert prefix.split_tools(sent(tools=tools).tools) == (
        (Tool(name="Bash", description="runs", input_schema={"type": "object"}), Tool(name="Read", input_schema={})),
        (),
    )


def test_the_same_tool_of_two_requests_is_one_object() -> None:
    (first,), _ = prefix.split_tools(sent(tools=[BASH]).tools)
    (second,), _ = prefix.split_tools(sent(tools=[BASH | {"strict": True}]).tools)
    assert first is second


def test_tools_that_differ_in_the_order_of_their_keys_alone_stay_apart() -> None:
    schemas = [{"type": "object", "title": "t"}, {"title": "t", "type": "object"}]
    kept = [prefix.split_tools(sent(tools=[BASH | {"input_schema": schema}]).tools)[0][0] for schema in schemas]
    assert [list(tool.input_schema) for tool in kept] == [["type", "title"], ["title", "type"]]


def test_a_huge_tool_is_not_kept_for_others() -> None:
    huge = BASH | {"description": "x" * prefix.SHARED_TOOL_BYTES}
    (first,), _ = prefix.split_tools(sent(tools=[huge]).tools)
    (second,), _ = prefix.split_tools(sent(tools=[huge]).tools)
    assert first == second
    assert first is not second


def test_tools_without_a_schema_are_removed_and_named_once() -> None:
    toolset = {"type": "mcp_toolset", "mcp_server_name": "x"}
    kept, removed = prefix.split_tools(sent(tools=[SEARCH, BASH, toolset, SEARCH, {"name": "bare"}]).tools)
    assert [tool.name for tool in kept] == ["Bash"]
    assert removed == ("web_search", "mcp_toolset", "bare")


@pytest.mark.parametrize(
    ("tools", "field"),
    [([BASH, {"input_schema": {}}], "tools[1].name"), ([{}], "tools[0].name"), ([BASH, SEARCH, BASH], "tools[2].name")],
    ids=["no name", "nothing", "name twice"],
)
def test_a_tool_that_cannot_be_told_apart_is_named(tools: list[dict[str, Any]], field: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        prefix.split_tools(sent(tools=tools).tools)
    assert refusal.value.field == field


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "any", "disable_parallel_tool_use": False}, ToolChoice(mode="any")),
        ({"type": "none"}, ToolChoice(mode="none")),
        ({"type": "tool", "name": "Bash"}, ToolChoice(mode="tool", name="Bash")),
        ({"type": "tool", "name": "web_search"}, ToolChoice()),
    ],
)
def test_every_form_of_choice_is_carried(choice: Any, expected: ToolChoice) -> None:
    assert choice_of(choice, [BASH, SEARCH]) == expected


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "web_search"}, {"type": "none"}])
def test_without_tools_there_is_no_choice(choice: Any) -> None:
    assert choice_of(choice, [SEARCH]) == ToolChoice()


@pytest.mark.parametrize(
    ("choice", "problem"), [({"type": "tool"}, "is required"), ({"type": "tool", "name": "X"}, "no tool")]
)
def test_a_choice_of_no_tool_is_refused(choice: Any, problem: str) -> None:
    with pytest.raises(BadRequest, match=rf"^tool_choice\.name: .*{problem}"):
        choice_of(choice, [BASH])
