"""Every way to offer tools and to choose among them is served, whatever their schemas hold."""

from typing import Any

import pytest

from tests.acceptance.conftest import RealCluster
from tests.acceptance.wire import BASH, ask, assistant, call, prompt_with, result, text_of, turns_of, user
from tests.doubles import scripted_model as scripts
from tests.doubles.cluster import Cluster

pytestmark = pytest.mark.acceptance

DONE = "All done: the tool result is here."

# --- parallel calls, ids, choices ---------------------------------------------------------------------------------


def test_parallel_calls_come_in_one_answer(real: RealCluster) -> None:
    answer = ask(real(scripts.TWO_PARALLEL_CALLS), user("go"), tools=[BASH])
    assert [block["input"]["command"] for block in answer["content"]] == ["echo left", "echo right"]
    assert len({block["id"] for block in answer["content"]}) == 2


def test_without_parallel_calls_only_one_comes(real: RealCluster) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    answer = ask(real(scripts.TWO_PARALLEL_CALLS), user("go"), tools=[BASH], tool_choice=choice)
    assert [block["type"] for block in answer["content"]] == ["tool_use"]


def test_ids_used_twice_are_told_apart(standin: Cluster) -> None:
    turns = [user("ids-1"), assistant(call("same", "ls 1")), user(result("same", "one"))]
    turns += [
        assistant(call("same", "ls 2"), call("same", "ls 3")),
        user(result("same", "two"), result("same", "three")),
    ]
    answer = ask(standin, *turns, tools=[BASH])
    prompt = prompt_with(standin, "ids-1")
    assert text_of(answer) == DONE
    assert [said for role, said in turns_of(prompt) if role == "tool"] == ["one", "two", "three"]


@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "Bash"}])
def test_a_choice_that_allows_calls_gives_one(real: RealCluster, choice: dict[str, Any]) -> None:
    other = {**BASH, "name": "Other"}
    answer = ask(real(scripts.TOOL_THEN_TEXT), user("go"), tools=[other, BASH], tool_choice=choice)
    assert [block["name"] for block in answer["content"] if block["type"] == "tool_use"] == ["Bash"]
    assert answer["stop_reason"] == "tool_use"


def test_no_call_is_presented_where_none_was_allowed(real: RealCluster) -> None:
    answer = ask(real(scripts.TOOL_THEN_TEXT), user("go"), tools=[BASH], tool_choice={"type": "none"})
    assert all(block["type"] == "text" for block in answer["content"])
    assert "<tool_call>" not in text_of(answer)
    assert answer["stop_reason"] == "end_turn"


def test_the_choice_does_not_change_the_prompt(real: RealCluster) -> None:
    cluster = real(scripts.TEXT_ONLY)
    who = {"x-claude-code-session-id": "choices"}
    tools = [{**BASH, "name": name} for name in ("One", "Bash", "Two")]
    answers = [
        ask(cluster, user("word " * 500), headers=who, tools=tools, tool_choice=choice)
        for choice in ({"type": "auto"}, {"type": "none"}, {"type": "auto", "disable_parallel_tool_use": True})
    ]
    assert answers[1]["usage"]["input_tokens"] == answers[2]["usage"]["input_tokens"] == 1


@pytest.mark.parametrize("given", ["All done", "<|im_end|>", "<tool_call>"], ids=["text", "end token", "opener"])
@pytest.mark.parametrize("choice", ["auto", "any", "tool", "none"])
def test_a_given_beginning_with_any_choice_leaves_the_engine_alive(real: RealCluster, given: str, choice: str) -> None:
    cluster = real(scripts.TEXT_ONLY)
    tool_choice = {"type": choice} | ({"name": "Bash"} if choice == "tool" else {})
    answer = ask(cluster, user("go"), assistant(given), tools=[BASH], tool_choice=tool_choice)
    assert answer["stop_reason"] == "end_turn"
    assert text_of(ask(cluster, user("go"))) == scripts.TEXT_ONLY.answer


# --- schemas and server tools -------------------------------------------------------------------------------------

SCHEMAS: dict[str, dict[str, Any]] = {
    "ref": {"$defs": {"path": {"type": "string"}}, "properties": {"command": {"$ref": "#/$defs/path"}}},
    "ref to nowhere": {"properties": {"command": {"$ref": "#/$defs/missing"}}},
    "ref to the net": {"properties": {"command": {"$ref": "https://example.com/schema.json"}}},
    "ref in a circle": {
        "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}}},
        "properties": {"n": {"$ref": "#/$defs/n"}},
    },
    "any of": {"properties": {"command": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
    "all of": {"properties": {"command": {"allOf": [{"type": "string"}, {"minLength": 1}]}}},
    "pattern": {"properties": {"command": {"type": "string", "pattern": r"^(?=.*\d)\p{L}+\b(?!x)"}}},
    "broken pattern": {"properties": {"command": {"type": "string", "pattern": "([a-z"}}},
    "format": {"properties": {"command": {"type": "string", "format": "no-such-format"}}},
    "huge maxLength": {"properties": {"command": {"type": "string", "maxLength": 10_000_000}}},
    "huge minItems": {"properties": {"command": {"type": "array", "minItems": 100_000, "items": {"type": "string"}}}},
    "no type at all": {},
    "true as schema": {"properties": {"command": True}},
    "type list": {"properties": {"command": {"type": ["string", "null"]}}},
    "not and if": {"properties": {"command": {"not": {"type": "null"}, "if": {}, "then": {}}}},
    "const and enum": {"properties": {"command": {"enum": ["a", 1, None]}, "b": {"const": {"x": [1]}}}},
    "pattern properties": {"patternProperties": {"^x": {"type": "string"}}, "additionalProperties": {"type": "string"}},
    "big numbers": {"properties": {"n": {"type": "integer", "minimum": -(2**70), "maximum": 2**70}}},
    "keys of other drafts": {
        "definitions": {},
        "properties": {"command": {"type": "string", "nullable": True, "x": 1}},
    },
}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())
def test_any_schema_of_a_tool_is_served(real: RealCluster, schema: dict[str, Any]) -> None:
    tool = {"name": "Odd", "description": "odd", "input_schema": {"type": "object", **schema}}
    answer = ask(real(scripts.TEXT_ONLY), user("go"), tools=[tool, BASH])
    assert text_of(answer) == scripts.TEXT_ONLY.answer


def test_unknown_fields_of_a_tool_and_a_body_are_ignored(real: RealCluster) -> None:
    tool = BASH | {"strict": True, "defer_loading": True, "eager_input_streaming": True, "input_examples": [{}]}
    fields = {
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
        "service_tier": "auto",
        "new": 1,
    }
    tool |= {"cache_control": {"type": "ephemeral"}}
    answer = ask(real(scripts.TOOL_THEN_TEXT), user("go"), tools=[tool], headers={"anthropic-beta": "a,b"}, **fields)
    assert answer["stop_reason"] == "tool_use"


def test_a_server_tool_is_left_out_with_a_note(standin: Cluster) -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    ask(standin, user("server-1"), tools=[search, BASH])
    prompt = prompt_with(standin, "server-1")
    assert "These tools are not available here and must not be called: web_search." in prompt
    assert '"name": "web_search"' not in prompt


def test_only_server_tools_leave_a_conversation_without_tools(real: RealCluster) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    choice = {"type": "tool", "name": "web_search"}
    assert text_of(ask(real(scripts.TEXT_ONLY), user("go"), tools=[search], tool_choice=choice))
