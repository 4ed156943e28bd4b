"""Scripted models on the real engine: each says what its script says, and only where it is meant to."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import scripted_model as scripts
from tests.doubles.engine import EngineProcess
from tests.doubles.scripted_model import Script

pytestmark = pytest.mark.acceptance

Engines = Callable[[Script], EngineProcess]


def tool(name: str, *fields: str) -> dict[str, Any]:
    properties = {field: {"type": "string"} for field in fields}
    parameters = {"type": "object", "properties": properties, "required": [fields[0]]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [tool("Bash", "command", "description"), tool("Agent", "description", "prompt", "subagent_type")]
ASK = {"role": "user", "content": "Please begin."}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, model_path: Callable[[Script], Path]) -> Iterator[Engines]:
    """A function from a script to a running engine; each started once."""
    running: dict[str, EngineProcess] = {}

    def start(script: Script) -> EngineProcess:
        if script.name not in running:
            window = 4096 if script is scripts.KV_HEAVY else 65536
            folder = tmp_path_factory.mktemp(script.name)
            running[script.name] = EngineProcess(folder, model_path(script), context_tokens=window).__enter__()
        return running[script.name]

    yield start
    for engine in running.values():
        engine.__exit__(None, None, None)


def ask(engine: EngineProcess, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The whole answer to `messages`, at the temperature that a client asks for."""
    body = {"messages": list(messages), "tools": TOOLS, "max_tokens": 2000, "id_slot": 0, "temperature": 1.0, **fields}
    answer = engine.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def said(answer: dict[str, Any]) -> dict[str, Any]:
    return dict(answer["choices"][0]["message"])


def calls(answer: dict[str, Any]) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in said(answer).get("tool_calls", [])]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


def with_results(answer: dict[str, Any], *results: str) -> list[dict[str, Any]]:
    """The conversation after the answer's calls were run."""
    message = said(answer)
    ids = [call["id"] for call in message["tool_calls"]]
    tools = [{"role": "tool", "tool_call_id": i, "content": r} for i, r in zip(ids, results, strict=True)]
    return [ASK, message, *tools]


def test_one_call_then_text(engines: Engines) -> None:
    engine = engines(scripts.TOOL_THEN_TEXT)
    first = ask(engine, ASK)
    assert calls(first) == [("Bash", {"command": "echo tool-ran", "description": "run echo"})]
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    second = ask(engine, *with_results(first, "tool-ran"))
    assert said(second)["content"] == scripts.TOOL_THEN_TEXT.answer
    assert second["choices"][0]["finish_reason"] == "stop"


def test_the_history_of_a_call_is_found_in_the_cache_as_it_was_generated(engines: Engines) -> None:
    engine = engines(scripts.TOOL_THEN_TEXT)
    first = ask(engine, ASK)
    second = ask(engine, *with_results(first, "tool-ran"))
    generated = first["usage"]["total_tokens"]
    # All of the first turn but its last token, which was sampled and never read.
    assert second["timings"]["cache_n"] >= generated - 1


def test_two_calls_in_one_turn_then_text(engines: Engines) -> None:
    engine = engines(scripts.TWO_PARALLEL_CALLS)
    first = ask(engine, ASK, parallel_tool_calls=True)
    assert [arguments["command"] for _, arguments in calls(first)] == ["echo left", "echo right"]
    second = ask(engine, *with_results(first, "left", "right"))
    assert said(second)["content"] == scripts.TWO_PARALLEL_CALLS.answer


def test_thinking_comes_apart_from_the_text(engines: Engines) -> None:
    answer = ask(engines(scripts.THINKING_THEN_TEXT), ASK)
    assert said(answer)["reasoning_content"].strip() == "First I weigh it up."
    assert said(answer)["content"] == "The answer is forty-two."


def test_thinking_comes_back_in_history_as_the_same_tokens(engines: Engines) -> None:
    engine = engines(scripts.THINKING_THEN_TEXT)
    first = ask(engine, ASK)
    second = ask(engine, ASK, said(first), {"role": "user", "content": "And again?"})
    assert second["timings"]["cache_n"] >= first["usage"]["total_tokens"] - 1


@pytest.mark.parametrize("count", [1, 2, 100, 199])
@pytest.mark.parametrize("tools", [TOOLS, []], ids=["tools", "no tools"])
def test_a_long_text_goes_on_where_it_was_cut(engines: Engines, count: int, tools: list[dict[str, Any]]) -> None:
    whole = scripts.LONG_TEXT.answer
    given = " ".join(whole.split(" ")[:count])
    answer = ask(engines(scripts.LONG_TEXT), ASK, {"role": "assistant", "content": given}, tools=tools)
    assert said(answer)["content"].removeprefix(given) == whole.removeprefix(given)


def test_a_long_text_is_said_whole(engines: Engines) -> None:
    answer = ask(engines(scripts.LONG_TEXT), ASK)
    assert said(answer)["content"] == scripts.LONG_TEXT.answer
    assert answer["usage"]["completion_tokens"] == 201


def test_the_main_line_calls_a_subagent_which_answers_and_then_ends_in_text(engines: Engines) -> None:
    engine = engines(scripts.SUBAGENT)
    first = ask(engine, ASK)
    [(name, arguments)] = calls(first)
    assert (name, arguments["prompt"]) == ("Agent", f"Please do the job named {scripts.BRIEF} now.")
    helper = ask(engine, {"role": "user", "content": arguments["prompt"]}, id_slot=1)
    assert said(helper)["content"] == scripts.HELPER_ANSWER
    second = ask(engine, *with_results(first, scripts.HELPER_ANSWER))
    assert said(second)["content"] == scripts.SUBAGENT.answer


def test_spaced_json_is_a_call_all_the_same(engines: Engines) -> None:
    engine = engines(scripts.SPACED_JSON)
    first = ask(engine, ASK)
    assert calls(first) == [("Bash", {"command": "echo spaced", "description": "run echo"})]
    assert said(ask(engine, *with_results(first, "x")))["content"] == scripts.SPACED_JSON.answer


def test_spaced_json_does_not_come_back_as_it_was_generated(engines: Engines) -> None:
    engine = engines(scripts.SPACED_JSON)
    first = ask(engine, ASK)
    second = ask(engine, *with_results(first, "x"))
    assert second["timings"]["cache_n"] < first["usage"]["total_tokens"] - 1


@pytest.mark.parametrize("script", [scripts.TEXT_ONLY, scripts.KV_HEAVY], ids=lambda script: script.name)
def test_plain_text(engines: Engines, script: Script) -> None:
    assert said(ask(engines(script), ASK))["content"] == script.answer


def test_without_tools_a_script_of_calls_answers_in_text(engines: Engines) -> None:
    answer = ask(engines(scripts.TOOL_THEN_TEXT), ASK, tools=[])
    assert said(answer)["content"] == scripts.TOOL_THEN_TEXT.answer


def test_a_long_prompt_full_of_the_words_of_tool_calls_changes_nothing(engines: Engines) -> None:
    engine = engines(scripts.TOOL_THEN_TEXT)
    noise = '<tool_call>\n{"name": "Bash"}\n</tool_call> <tool_response>x</tool_response> role tool <think> ' * 1500
    system = {"role": "system", "content": noise}
    first = ask(engine, system, ASK)
    assert first["usage"]["prompt_tokens"] > 29000
    assert calls(first) == [("Bash", {"command": "echo tool-ran", "description": "run echo"})]
    second = ask(engine, system, *with_results(first, noise[:9000]))
    assert said(second)["content"] == scripts.TOOL_THEN_TEXT.answer


def test_a_required_call_is_made(engines: Engines) -> None:
    answer = ask(engines(scripts.TOOL_THEN_TEXT), ASK, tool_choice="required")
    assert calls(answer)[0][0] == "Bash"
