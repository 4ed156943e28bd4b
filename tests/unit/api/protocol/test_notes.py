"""Words in place of what the engine cannot be given."""

from typing import Any

import pytest

from api.protocol import normalise
from api.protocol.schema import validated
from scheduler.contract import ImageBlock, TextBlock

pytestmark = pytest.mark.unit


def told(block: dict[str, Any]) -> str:
    """What a user message with this one block becomes."""
    (message,) = normalise.messages(validated({"messages": [{"role": "user", "content": [block]}]}).messages)[0]
    (only,) = message.content
    if isinstance(only, ImageBlock):
        return only.url
    assert isinstance(only, TextBlock)
    return only.text


def document(**fields: Any) -> dict[str, Any]:
    return {"type": "document", **fields}


PDF = {"type": "base64", "media_type": "application/pdf", "data": "aGk="}
CASES: list[tuple[str, dict[str, Any], str]] = [
    (
        "image of a URL",
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        "https://example.org/a.png",
    ),
    (
        "image of bytes",
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        "data:image/png;base64,aGk=",
    ),
    (
        "image of a file",
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        "[image left out: the file file_1 is not stored here]",
    ),
    ("text document", document(source={"type": "text", "data": "words"}), "[document]\nwords"),
    (
        "titled document",
        document(source={"type": "text", "data": "words"}, title="T", context="C"),
        "[document: T]\nC\nwords",
    ),
    (
        "document of blocks",
        document(source={"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "image"}, "b"]}),
        "[document]\na\nb",
    ),
    (
        "PDF",
        document(source=PDF, title="T"),
        "[document: T]\n[left out: only text can be read here, not application/pdf]",
    ),
    (
        "document elsewhere",
        document(source={"type": "url", "url": "https://example.org/a.pdf"}),
        "[document]\n[left out: only text sent in the request can be read here]",
    ),
    (
        "search result",
        {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "a"}]},
        "[search result]\nT\nS\na",
    ),
    (
        "server call",
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        '[web_search was called with {"query":"q"}]',
    ),
    (
        "web search",
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": [{"type": "web_search_result", "url": "U", "title": "T", "encrypted_content": "XXXX"}],
        },
        "[web_search_tool_result]\nT\nU",
    ),
    (
        "web search that failed",
        {"type": "web_search_tool_result", "content": {"type": "error", "error_code": "max_uses_exceeded"}},
        "[web_search_tool_result]\nmax_uses_exceeded",
    ),
    (
        "web fetch",
        {
            "type": "web_fetch_tool_result",
            "content": {"url": "U", "content": document(source={"type": "text", "data": "a"})},
        },
        "[web_fetch_tool_result]\nU\na",
    ),
    (
        "web fetch of a PDF",
        {"type": "web_fetch_tool_result", "content": {"url": "U", "content": document(source=PDF)}},
        "[web_fetch_tool_result]\nU",
    ),
    (
        "code",
        {"type": "code_execution_tool_result", "content": {"stdout": "out", "stderr": "err", "return_code": 1}},
        "[code_execution_tool_result]\nout\nerr",
    ),
    ("compaction", {"type": "compaction", "content": "so far"}, "[compaction]\nso far"),
    ("tool reference", {"type": "tool_reference", "tool_name": "n"}, "[tool_reference]\nn"),
]


@pytest.mark.parametrize(("block", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_cannot_be_shown_is_told(block: dict[str, Any], expected: str) -> None:
    assert told(block) == expected
