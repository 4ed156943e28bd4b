"""History that a client sends back is the very tokens that were generated: the next turn prefills what is new alone.

One model plays the beginnings of all scripts, so that one engine is enough; the official SDK keeps the history.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from anthropic import Anthropic
from anthropic.types import ContentBlock, Message, MessageParam, ToolParam

from tests.acceptance.conftest import RealCluster
from tests.doubles import scripted_model as scripts
from tests.doubles.scripted_model import Script

pytestmark = pytest.mark.acceptance

# The token that ends a turn was sampled but never read, so it is no part of the slot's cache.
UNREAD_TOKENS = 1
TEXT = {"type": "string"}
EDITS = {"type": "array", "items": {"type": "object", "properties": {"old": TEXT, "new": TEXT}, "required": ["old"]}}
NOTE = {"anyOf": [TEXT, {"type": "null"}]}
SYSTEM = "You are a careful helper. " * 20


def tool(name: str, **properties: Any) -> ToolParam:
    schema: Any = {"type": "object", "properties": properties, "required": [next(iter(properties))]}
    return cast(ToolParam, {"name": name, "description": f"Do {name}.", "input_schema": schema})


TOOLS = [
    tool("Bash", command=TEXT, description=TEXT),
    tool("Agent", description=TEXT, prompt=TEXT, subagent_type=TEXT),
    tool("Edit", path=TEXT, edits=EDITS, count={"type": "integer"}, dry={"type": "boolean"}, note=NOTE),
]


@pytest.fixture(scope="module")
def sdk(real: RealCluster) -> Iterator[Anthropic]:
    cluster = real(scripts.medley(*scripts.ALL))
    with Anthropic(base_url=cluster.url, api_key="any-key", max_retries=0) as client:
        yield client


class Talk:
    """A conversation as the SDK's users keep it: each answer's content goes back as it came."""

    def __init__(self, sdk: Anthropic, script: Script, **fields: Any) -> None:
        self.sdk = sdk
        self.fields: dict[str, Any] = {"system": SYSTEM, "tools": TOOLS, **fields}
        self.headers = {"x-agent-id": script.name}
        self.messages: list[MessageParam] = [user(f"Please {scripts.brief_of(script)} .")]

    def turn(self) -> Message:
        with self.sdk.messages.stream(
            model="m", max_tokens=2000, messages=self.messages, extra_headers=self.headers, **self.fields
        ) as stream:
            answer = stream.get_final_message()
        self.messages += [{"role": "assistant", "content": answer.content}, user(*follow_up(answer.content))]
        return answer


def user(*content: Any) -> MessageParam:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def follow_up(content: Sequence[ContentBlock]) -> list[Any]:
    """Results of all calls, or a next question."""
    calls = [block.id for block in content if block.type == "tool_use"]
    return [{"type": "tool_result", "tool_use_id": one, "content": "done"} for one in calls] or ["And what then?"]


def prompt_tokens(answer: Message) -> int:
    return answer.usage.input_tokens + cached_tokens(answer)


def cached_tokens(answer: Message) -> int:
    return answer.usage.cache_read_input_tokens or 0


def lost_tokens(answer: Message, following: Message) -> int:
    """Tokens that the slot had read for `answer`, prompt and answer, and that the next turn did not find again."""
    return prompt_tokens(answer) + answer.usage.output_tokens - UNREAD_TOKENS - cached_tokens(following)


@pytest.mark.parametrize(
    "script", [script for script in scripts.ALL if script is not scripts.SPACED_JSON], ids=lambda script: script.name
)
def test_an_answer_that_comes_back_is_found_in_the_cache(sdk: Anthropic, script: Script) -> None:
    talk = Talk(sdk, script)
    first, second, third = (talk.turn() for _ in range(3))
    said = script.first or script.answer
    assert [block.type for block in first.content] == kinds(said)
    assert lost_tokens(first, second) <= 0
    assert lost_tokens(second, third) <= 0


def kinds(said: str) -> list[str]:
    """The blocks that what a script says is answered in."""
    text = said.partition("</think>")[2] or said
    blocks = ["thinking"] * ("<think>" in said) + ["text"] * (not text.strip().startswith("<tool_call>"))
    return blocks + ["tool_use"] * said.count("<tool_call>")


def test_an_answer_in_another_spacing_than_the_template_s_is_read_once_more(sdk: Anthropic) -> None:
    """Decision 0013: what it costs is the call itself, once, and no token of what stands before it."""
    talk = Talk(sdk, scripts.SPACED_JSON)
    first, second, third = (talk.turn() for _ in range(3))
    assert [block.type for block in first.content] == ["tool_use"]
    assert 0 < lost_tokens(first, second) <= first.usage.output_tokens
    assert cached_tokens(second) >= prompt_tokens(first)
    assert lost_tokens(second, third) <= 0


def test_thinking_comes_back_whatever_its_signature_says(sdk: Anthropic) -> None:
    talk = Talk(sdk, scripts.THINKING_THEN_TEXT, system="Another prefix.")
    first = talk.turn()
    thought, words = first.content
    unsigned: Any = [thought.model_dump() | {"signature": ""}, words.model_dump()]
    talk.messages[1] = {"role": "assistant", "content": unsigned}
    second = talk.turn()
    assert lost_tokens(first, second) <= 0
