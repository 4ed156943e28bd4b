"""The official anthropic SDK, sync and async, as its users would have it: scripted models on the real engine."""

import base64
from collections.abc import Iterator
from typing import Any, cast

import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import MessageParam, ToolParam

from tests.acceptance.conftest import RealCluster, StartCluster
from tests.acceptance.wire import BASH, occupied
from tests.doubles import scripted_model as scripts
from tests.doubles.cluster import Cluster

pytestmark = pytest.mark.acceptance

TOOLS = [cast(ToolParam, BASH)]
GO: MessageParam = {"role": "user", "content": "Please begin."}
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()
IMAGE: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}


@pytest.fixture
def sdk(real: RealCluster) -> Iterator[Anthropic]:
    """A client of the cluster that calls one tool and then answers."""
    with client_of(real(scripts.TOOL_THEN_TEXT)) as client:
        yield client


def client_of(cluster: Cluster, **options: Any) -> Anthropic:
    return Anthropic(base_url=cluster.url, **{"api_key": "any-key", "max_retries": 0, **options})


def results(content: Any, text: str = "tool-ran") -> list[MessageParam]:
    """The conversation after the calls in `content` were run."""
    calls = [block.id for block in content if block.type == "tool_use"]
    told: Any = [{"type": "tool_result", "tool_use_id": call_id, "content": text} for call_id in calls]
    return [GO, {"role": "assistant", "content": content}, {"role": "user", "content": told}]


# --- messages -----------------------------------------------------------------------------------------------------


def test_a_message_is_created_without_tools(sdk: Anthropic) -> None:
    message = sdk.messages.create(model="claude-opus-4-8", max_tokens=100, messages=[GO])
    assert [block.type for block in message.content] == ["text"]
    assert message.content[0].text == scripts.TOOL_THEN_TEXT.answer  # type: ignore[union-attr]
    assert (message.role, message.type, message.stop_reason) == ("assistant", "message", "end_turn")
    assert message.usage.output_tokens > 0


def test_a_tool_loop_goes_through(sdk: Anthropic) -> None:
    first = sdk.messages.create(model="m", max_tokens=500, messages=[GO], tools=TOOLS)
    [call] = [block for block in first.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("Bash", {"command": "echo tool-ran", "description": "run echo"})
    assert first.stop_reason == "tool_use"
    second = sdk.messages.create(model="m", max_tokens=500, messages=results(first.content), tools=TOOLS)
    assert second.content[0].text == scripts.TOOL_THEN_TEXT.answer  # type: ignore[union-attr]
    assert second.usage.cache_read_input_tokens


def test_a_message_is_streamed(sdk: Anthropic) -> None:
    with sdk.messages.stream(model="m", max_tokens=500, messages=[GO]) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert "".join(pieces) == scripts.TOOL_THEN_TEXT.answer
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 0


def test_a_call_is_streamed(sdk: Anthropic) -> None:
    with sdk.messages.stream(model="m", max_tokens=500, messages=[GO], tools=TOOLS) as stream:
        message = stream.get_final_message()
    [call] = [block for block in message.content if block.type == "tool_use"]
    assert call.input == {"command": "echo tool-ran", "description": "run echo"}
    assert message.stop_reason == "tool_use"


def test_raw_events_are_streamed(sdk: Anthropic) -> None:
    events = list(sdk.messages.create(model="m", max_tokens=500, messages=[GO], stream=True))
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")


@pytest.mark.parametrize("streamed", [True, False])
def test_parallel_calls_and_their_results_go_through(real: RealCluster, streamed: bool) -> None:
    with client_of(real(scripts.TWO_PARALLEL_CALLS)) as client:
        if streamed:
            with client.messages.stream(model="m", max_tokens=500, messages=[GO], tools=TOOLS) as stream:
                first = stream.get_final_message()
        else:
            first = client.messages.create(model="m", max_tokens=500, messages=[GO], tools=TOOLS)  # type: ignore[assignment]
        inputs: list[Any] = [block.input for block in first.content if block.type == "tool_use"]
        assert [given["command"] for given in inputs] == ["echo left", "echo right"]
        second = client.messages.create(model="m", max_tokens=500, messages=results(first.content), tools=TOOLS)
    assert second.content[0].text == scripts.TWO_PARALLEL_CALLS.answer  # type: ignore[union-attr]


def test_thinking_comes_as_a_block_and_goes_back(real: RealCluster) -> None:
    with client_of(real(scripts.THINKING_THEN_TEXT)) as client:
        fields: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "model": "m", "max_tokens": 2000}
        with client.messages.stream(messages=[GO], **fields) as stream:
            first = stream.get_final_message()
        thought, text = first.content
        assert thought.type == "thinking"
        assert thought.thinking.strip() == "First I weigh it up."
        assert thought.signature
        assert text.text == "The answer is forty-two."  # type: ignore[union-attr]
        turns: list[Any] = [GO, {"role": "assistant", "content": first.content}, {"role": "user", "content": "Again?"}]
        second = client.messages.create(messages=turns, **fields)
    assert [block.type for block in second.content] == ["thinking", "text"]


def test_an_image_without_vision_leaves_the_conversation_going(sdk: Anthropic) -> None:
    shown: MessageParam = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]}
    first = sdk.messages.create(model="m", max_tokens=100, messages=[shown])
    turns: list[Any] = [shown, {"role": "assistant", "content": first.content}, GO]
    assert sdk.messages.create(model="m", max_tokens=100, messages=turns).stop_reason == "end_turn"


def test_a_client_with_other_credentials_is_served_where_no_keys_are_set(real: RealCluster) -> None:
    with client_of(real(scripts.TOOL_THEN_TEXT), api_key=None, auth_token="any-token") as client:
        assert client.messages.create(model="m", max_tokens=100, messages=[GO]).content


# --- counting -----------------------------------------------------------------------------------------------------

PROMPTS: dict[str, dict[str, Any]] = {
    "plain": {"messages": [GO]},
    "system": {"messages": [GO], "system": "You are brief."},
    "system blocks": {"messages": [GO], "system": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]},
    "tools": {"messages": [GO], "tools": TOOLS, "system": "You are brief."},
    "no call allowed": {"messages": [GO], "tools": TOOLS, "tool_choice": {"type": "none"}},
    "one tool only": {"messages": [GO], "tools": TOOLS, "tool_choice": {"type": "tool", "name": "Bash"}},
    "image": {"messages": [{"role": "user", "content": [IMAGE]}]},
    "thinking": {"messages": [GO], "thinking": {"type": "enabled", "budget_tokens": 1024}},
    "given beginning": {"messages": [GO, {"role": "assistant", "content": "All done"}]},
    "history": {
        "tools": TOOLS,
        "messages": [
            GO,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a b c"}]},
        ],
    },
    "long": {"messages": [{"role": "user", "content": "many words " * 2000}]},
}


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
def test_a_count_is_what_the_real_request_uses(sdk: Anthropic, prompt: dict[str, Any]) -> None:
    counted = sdk.messages.count_tokens(model="m", **prompt).input_tokens
    usage = sdk.messages.create(model="m", max_tokens=2000, **prompt).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_count_is_given_while_every_slot_is_busy(start_cluster: StartCluster) -> None:
    cluster = start_cluster(workers=1, slots=1)
    with client_of(cluster, timeout=5) as client, occupied(cluster, 1):
        assert client.messages.count_tokens(model="m", messages=[GO]).input_tokens > 0


# --- models -------------------------------------------------------------------------------------------------------


def test_models_are_listed_and_found(sdk: Anthropic) -> None:
    [model] = list(sdk.with_options(timeout=3).models.list())
    assert model.id.startswith("anthropic-")
    assert sdk.models.retrieve(model.id).id == model.id
    assert sdk.models.retrieve("claude-opus-4-8").type == "model"


def test_any_model_name_is_served(sdk: Anthropic) -> None:
    for name in ("claude-opus-4-8", "gpt-4o", "anthropic-tool-then-text", "x" * 200):
        assert sdk.messages.create(model=name, max_tokens=50, messages=[GO]).content


# --- the same, awaited --------------------------------------------------------------------------------------------


async def test_everything_works_awaited(real: RealCluster) -> None:
    async with AsyncAnthropic(base_url=real(scripts.TOOL_THEN_TEXT).url, api_key="any-key", max_retries=0) as client:
        counted = await client.messages.count_tokens(model="m", messages=[GO], tools=TOOLS)
        first = await client.messages.create(model="m", max_tokens=500, messages=[GO], tools=TOOLS)
        assert counted.input_tokens == first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0)
        turns = results(first.content)
        async with client.messages.stream(model="m", max_tokens=500, messages=turns, tools=TOOLS) as stream:
            pieces = [piece async for piece in stream.text_stream]
        assert "".join(pieces) == scripts.TOOL_THEN_TEXT.answer
        assert [model.type async for model in client.models.list()] == ["model"]
        assert (await client.models.retrieve("m")).type == "model"


async def test_parallel_calls_and_thinking_work_awaited(real: RealCluster) -> None:
    async with AsyncAnthropic(base_url=real(scripts.TWO_PARALLEL_CALLS).url, api_key="k", max_retries=0) as client:
        message = await client.messages.create(model="m", max_tokens=500, messages=[GO], tools=TOOLS)
        assert [block.type for block in message.content] == ["tool_use", "tool_use"]
    async with AsyncAnthropic(base_url=real(scripts.THINKING_THEN_TEXT).url, api_key="k", max_retries=0) as client:
        async with client.messages.stream(model="m", max_tokens=500, messages=[GO]) as stream:
            message = await stream.get_final_message()
        assert [block.type for block in message.content] == ["thinking", "text"]
