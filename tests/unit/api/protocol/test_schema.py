"""Which bodies are taken, and how the wrong field is named."""

from typing import Any

import pytest

from api.protocol.schema import MAX_INT, MAX_MESSAGES, MessagesRequest, Text, validated
from infra.errors import BadRequest

pytestmark = pytest.mark.unit


def body(*blocks: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks) or "hello"}], **fields}


def result(content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t", "content": content}


def image(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source}


BLOCKS = [
    {"type": "text", "text": "a", "citations": None, "cache_control": {"type": "ephemeral"}},
    image(type="base64", media_type="image/png", data="aGk="),
    image(type="url", url="HTTPS://example.org/a.png"),
    image(type="file", file_id="file_1"),
    {"type": "tool_use", "id": "t", "name": "n", "input": {}, "caller": {"type": "direct"}},
    {"type": "tool_use", "id": "t", "name": "n"},
    result("text"),
    result([]),
    result(None),
    {"type": "tool_result", "tool_use_id": "t", "is_error": None},
    result([{"type": "text", "text": "a"}, image(type="url", url="data:image/png;base64,aGk=")]),
    result([{"type": "tool_reference", "tool_name": "n"}]),
    {"type": "thinking", "thinking": "hm", "signature": "any"},
    {"type": "thinking", "thinking": "hm"},
    {"type": "redacted_thinking", "data": "x"},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}, "title": None},
    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}},
    {"type": "document", "source": {"type": "content", "content": "a"}},
    {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "a"}]}},
    {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "a"}]},
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
    {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block["type"])
def test_every_kind_of_block_is_taken(block: dict[str, Any]) -> None:
    assert validated(body(block)).messages[0].content[0].type == block["type"]


def test_a_string_is_short_for_one_text_block() -> None:
    taken = validated({"messages": [{"role": "user", "content": "a"}], "system": "s"})
    assert taken.messages[0].content == [Text(type="text", text="a")]
    assert taken.system == [Text(type="text", text="s")]


def test_unknown_fields_anywhere_are_ignored() -> None:
    extra = {
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
        "betas": ["x"],
        "service_tier": "auto",
        "metadata": ["any", {"shape": 1}],
    }
    tool = {"name": "n", "input_schema": {}, "strict": True, "defer_loading": True, "input_examples": [{}]}
    assert validated(body(tools=[tool | {"eager_input_streaming": True}], **extra)).tools[0].name == "n"


def test_null_means_not_said() -> None:
    optional = [name for name, field in MessagesRequest.model_fields.items() if not field.is_required()]
    assert validated(body(**dict.fromkeys(optional))) == validated(body())


@pytest.mark.parametrize(
    ("sent", "taken"), [(1, 1), (64_000, 64_000), (2**31, MAX_INT), (2**80, MAX_INT), (1e30, MAX_INT)]
)
def test_max_tokens_beyond_what_the_engine_counts_is_clamped(sent: float, taken: int) -> None:
    assert validated(body(max_tokens=sent)).max_tokens == taken


UNKNOWN_KIND = "unknown type 'hologram'; known are "
WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "messages: is required"),
    ({"messages": []}, "messages: must hold 1 to 20000 messages, not 0"),
    ({"messages": {}}, "messages: must be a list"),
    ({"messages": [3]}, "messages[0]: must be a JSON object"),
    ({"messages": [{"content": "a"}]}, "messages[0].role: is required"),
    (
        {"messages": [{"role": "developer", "content": "a"}]},
        "messages[0].role: must be 'user', 'assistant' or 'system'",
    ),
    ({"messages": [{"role": "user"}]}, "messages[0].content: is required"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content: must be a string or a list of blocks"),
    (body(3), "messages[0].content[0]: must be a JSON object"),
    (body({"text": "a"}), "messages[0].content[0].type: is required"),
    (body({"type": "hologram"}), f"messages[0].content[0].type: {UNKNOWN_KIND}"),
    (body({"type": "text", "text": "a"}, {"type": 3}), "messages[0].content[1].type: unknown type"),
    (body({"type": "text"}), "messages[0].content[0].text: is required"),
    (body({"type": "text", "text": 5}), "messages[0].content[0].text: must be a string"),
    (body({"type": "image"}), "messages[0].content[0].source: is required"),
    (body(image(type="hologram")), f"messages[0].content[0].source.type: {UNKNOWN_KIND}"),
    (body(image(type="base64", data="a")), "messages[0].content[0].source.media_type: is required"),
    (body(image(type="url", url="file:///etc/passwd")), "messages[0].content[0].source.url: must start with http://"),
    (body({"type": "tool_use", "id": "t", "name": ""}), "messages[0].content[0].name: must not be empty"),
    (body({"type": "tool_use", "id": "t", "name": "n", "input": "{}"}), "messages[0].content[0].input: must be a JSON"),
    (body({"type": "tool_result"}), "messages[0].content[0].tool_use_id: is required"),
    (body(result(7)), "messages[0].content[0].content: must be a string or a list of blocks"),
    (body(result([{"type": "hologram"}])), f"messages[0].content[0].content[0].type: {UNKNOWN_KIND}"),
    (body(result([{"type": "text"}])), "messages[0].content[0].content[0].text: is required"),
    (body(result([image(type="url")])), "messages[0].content[0].content[0].source.url: is required"),
    (body(system=3), "system: must be a string or a list of blocks"),
    (body(system=[{"type": "image"}]), "system[0].type: must be 'text'"),
    (body(max_tokens=0), "max_tokens: must be greater than or equal to 1"),
    (body(max_tokens=-1), "max_tokens: must be greater than or equal to 1"),
    (body(max_tokens=True), "max_tokens: must be a whole number"),
    (body(max_tokens=1.0), "max_tokens: must be a whole number"),
    (body(max_tokens="5"), "max_tokens: must be a whole number"),
    (body(tools={}), "tools: must be a list"),
    (body(tools=[{"name": "n", "input_schema": "{}"}]), "tools[0].input_schema: must be a JSON object"),
    (body(tool_choice="auto"), "tool_choice: must be a JSON object"),
    (body(tool_choice={"type": "banana"}), "tool_choice.type: must be 'auto', 'any', 'tool' or 'none'"),
    (body(thinking={"type": "banana"}), "thinking.type: must be 'adaptive', 'enabled' or 'disabled'"),
    (body(thinking={"type": "enabled", "budget_tokens": -1}), "thinking.budget_tokens: must be greater"),
    (body(stop_sequences="a"), "stop_sequences: must be a list"),
    (body(stop_sequences=["a", 1]), "stop_sequences[1]: must be a string"),
    (body(temperature="hot"), "temperature: must be a valid number"),
    (body(temperature=2.5), "temperature: must be less than or equal to 2"),
    (body(temperature=True), "temperature: must be a valid number"),
    (body(top_p=-0.1), "top_p: must be greater than or equal to 0"),
    (body(top_k=0.5), "top_k: must be a whole number"),
    (body(stream="true"), "stream: must be true or false"),
    (body(model=3), "model: must be a string"),
    (body(model="m" * 257), "model: must have at most 256 characters"),
]


@pytest.mark.parametrize(("sent", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_is_named_with_its_path(sent: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        validated(sent)
    assert str(refusal.value).startswith(message)
    assert refusal.value.field == message.partition(": ")[0]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a"}] * (MAX_MESSAGES + 1),
        [3] * MAX_MESSAGES,
        [{"role": "user", "content": [3] * 10**6}],
    ],
    ids=["too many", "all wrong", "wrong blocks"],
)
def test_a_flood_of_items_is_refused_by_its_first_fault(messages: list[Any]) -> None:
    with pytest.raises(BadRequest, match=r"^messages"):
        validated({"messages": messages})


def test_a_client_sees_little_of_its_own_words_again() -> None:
    with pytest.raises(BadRequest) as refusal:
        validated(body({"type": "x" * 10**6}))
    assert len(str(refusal.value)) < 1_000
