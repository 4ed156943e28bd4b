"""The body for the engine: what is asked of it, and what never changes the prompt."""

import json
from typing import Any

import orjson
import pytest

from scheduler.contract import GenerationRequest, Message, TextBlock, Thinking, Tool, ToolChoice
from scheduler.tool_lists import KNOWN_LIST_BYTES
from workers.llama.functions import functions
from workers.llama.grammar import safe_schema
from workers.llama.render import answer_rules, render

pytestmark = pytest.mark.unit

CONTEXT = 4096
BASH = Tool(name="Bash", description="runs", input_schema={"type": "object", "properties": {"b": {}, "a": {}}})
READ = Tool(name="Read", input_schema={"type": "object", "properties": {"n": {"type": "integer", "maximum": 10**30}}})


def asked(**changes: Any) -> GenerationRequest:
    hello = Message(role="user", content=(TextBlock(text="hello"),))
    return GenerationRequest(**{"model": "m", "messages": (hello,), "max_tokens": 100, **changes})


def body(*, stop: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    """As the engine reads it."""
    read: dict[str, Any] = json.loads(written(asked(**changes), stop=stop))
    return read


def written(request: GenerationRequest, *, stop: tuple[str, ...] = ()) -> bytes:
    return orjson.dumps(render(request, slot=3, stop=stop, vision=False, context_tokens=CONTEXT))


def prefill(text: str = "Sure") -> tuple[Message, ...]:
    return (*asked().messages, Message(role="assistant", content=(TextBlock(text=text),)))


def test_the_plain_body() -> None:
    assert body() == {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
        "cache_prompt": True,
        "id_slot": 3,
        "timings_per_token": False,
    }


def test_max_tokens_is_held_inside_the_window() -> None:
    assert body(max_tokens=64000)["max_tokens"] == CONTEXT
    assert body(max_tokens=-5)["max_tokens"] == 1


def test_sampling_is_sent_only_when_given() -> None:
    sampled = body(temperature=0.0, top_p=0.5, top_k=7)

    assert (sampled["temperature"], sampled["top_p"], sampled["top_k"]) == (0.0, 0.5, 7)


def test_the_models_own_stop_words_go_to_the_engine_and_the_clients_do_not() -> None:
    stopped = body(stop=("<end>",), stop_sequences=("END",))

    assert stopped["stop"] == ["<end>"]
    assert stopped["timings_per_token"] is True
    assert answer_rules(asked(stop_sequences=("END",)), context_tokens=CONTEXT).stop_sequences == ("END",)


@pytest.mark.parametrize("enabled", [True, False])
def test_thinking_is_said_only_if_the_client_said_it(enabled: bool) -> None:
    assert body(thinking=Thinking(enabled=enabled))["chat_template_kwargs"] == {"enable_thinking": enabled}
    assert "chat_template_kwargs" not in body()


def test_a_thinking_budget_is_passed_on() -> None:
    assert body(thinking=Thinking(enabled=True, budget_tokens=2000))["reasoning_budget_tokens"] == 2000
    assert "reasoning_budget_tokens" not in body(thinking=Thinking(enabled=False, budget_tokens=2000))


def test_a_given_beginning_turns_thinking_off() -> None:
    arguments = body(messages=prefill(), thinking=Thinking(enabled=True))["chat_template_kwargs"]

    assert arguments == {"enable_thinking": False}


def test_tools_become_functions_with_their_key_order_kept() -> None:
    first, second = body(tools=(BASH, READ))["tools"]

    assert first["type"] == "function"
    assert (first["function"]["name"], first["function"]["description"]) == ("Bash", "runs")
    assert list(first["function"]["parameters"]["properties"]) == ["b", "a"]
    assert second["function"]["parameters"]["properties"]["n"] == {"type": "integer"}


@pytest.mark.parametrize(("mode", "engines"), [("auto", "auto"), ("any", "required"), ("none", "none")])
def test_the_choices_that_the_engine_knows_keep_all_tools_in_the_prompt(mode: str, engines: str) -> None:
    chosen = body(tools=(BASH, READ), tool_choice=ToolChoice(mode=mode))

    assert chosen["tool_choice"] == engines
    assert len(chosen["tools"]) == 2
    assert "chat_template_kwargs" not in chosen
    assert ("grammar" in chosen) == (mode == "none")


def test_a_tool_by_name_is_the_only_one_callable_while_the_prompt_shows_all() -> None:
    chosen = body(tools=(BASH, READ), tool_choice=ToolChoice(mode="tool", name="Read"))

    assert [tool["function"]["name"] for tool in chosen["tools"]] == ["Read"]
    assert chosen["tool_choice"] == "required"
    assert chosen["chat_template_kwargs"]["tools"] == body(tools=(BASH, READ))["tools"]


def test_a_tool_by_a_name_that_is_not_there_is_any_tool() -> None:
    chosen = body(tools=(BASH,), tool_choice=ToolChoice(mode="tool", name="Gone"))

    assert (len(chosen["tools"]), chosen["tool_choice"]) == (1, "required")


def test_parallel_calls_can_be_switched_off() -> None:
    choice = ToolChoice(parallel=False)

    assert body(tools=(BASH,), tool_choice=choice)["parallel_tool_calls"] is False
    assert answer_rules(asked(tools=(BASH,), tool_choice=choice), context_tokens=CONTEXT).parallel_calls is False


def test_without_tools_nothing_is_said_of_them() -> None:
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(body(tool_choice=ToolChoice(mode="any")))


CHOICES = [ToolChoice(mode=mode) for mode in ("auto", "any", "none")]
CHOICES += [ToolChoice(mode="tool", name=name) for name in ("Read", "Gone")]
BEYOND = Tool(name="Beyond", input_schema={"properties": {"\u00e9": {"enum": [2**64, -(2**63), 1.5, "\u2028"]}}})


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_equal_requests_are_equal_bytes_whether_their_tools_are_known_or_not(choice: ToolChoice) -> None:
    """What is known is never read again; a copy of it is."""
    tools = (BASH, READ, BEYOND)
    request = asked(tools=tools, tool_choice=choice, system="S", thinking=Thinking(enabled=True))
    before = written(request)
    copies = tuple(tool.model_copy(deep=True) for tool in tools)
    assert written(request) == before
    assert written(request.model_copy(update={"tools": copies})) == before
    plain = render(request, slot=3, stop=(), vision=False, context_tokens=CONTEXT)
    assert before == orjson.dumps(with_plain_tools(plain, copies))


def with_plain_tools(body: dict[str, Any], tools: tuple[Tool, ...]) -> dict[str, Any]:
    """The body with all that is kept of tools written out anew."""
    shown: list[dict[str, Any]] = [
        {
            "type": "function",
            "function": {
                "name": tool.name, "description": tool.description, "parameters": safe_schema(tool.input_schema),
            },
        }
        for tool in tools
    ]  # fmt: skip
    arguments = body["chat_template_kwargs"]
    if "tools" in arguments:
        body["chat_template_kwargs"] = arguments | {"tools": shown}
        return body | {"tools": [function for function in shown if function["function"]["name"] == "Read"]}
    return body | {"tools": shown}


def test_a_list_of_tools_is_made_ready_once_for_as_long_as_it_is_in_use() -> None:
    tools = (BASH, READ)
    assert functions(tools) is functions((BASH, READ))
    assert functions(tuple(tool.model_copy() for tool in tools)) is not functions(tools)


def test_a_list_that_is_too_large_to_keep_is_not_kept() -> None:
    tools = (Tool(name="large", description="x" * (KNOWN_LIST_BYTES + 1), input_schema={}),)
    assert functions(tools) is not functions(tools)
    assert written(asked(tools=tools)) == written(asked(tools=tools))


@pytest.mark.parametrize("choice", [ToolChoice(mode="any"), ToolChoice(mode="tool", name="Bash")])
def test_a_given_beginning_is_never_held_against_the_grammar_of_a_required_call(choice: ToolChoice) -> None:
    assert body(tools=(BASH, READ), tool_choice=choice)["tool_choice"] == "required"
    assert body(tools=(BASH, READ), tool_choice=choice, messages=prefill())["tool_choice"] == "auto"
