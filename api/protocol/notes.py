"""Text in place of what the engine cannot be given: documents, search results, traces of other providers' tools.

Owns: the words of each such note. The same block always gives the same words, so prefixes stay stable.
Never: an error; what cannot be read is named and left out.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import orjson

from api.protocol.schema import (
    Base64Source,
    ContentSource,
    Document,
    FileSource,
    Image,
    SearchResult,
    ServerBlock,
    TextSource,
)
from scheduler.contract import Block, ImageBlock, Message, TextBlock, ToolResultBlock

# Where readable words stand in other providers' results, in reading order. The rest is encrypted or bookkeeping.
READABLE_KEYS = ("title", "url", "tool_name", "file_id", "error_code", "text", "stdout", "stderr", "tool_references")
NESTED_KEYS = ("source", "content")

Holder = TypeVar("Holder", Message, ToolResultBlock)


def image(block: Image) -> ImageBlock | TextBlock:
    """The image as a URL the engine takes, or a note when its bytes lie with another provider."""
    source = block.source
    if isinstance(source, FileSource):
        return TextBlock(text=f"[image left out: the file {source.file_id} is not stored here]")
    if isinstance(source, Base64Source):
        return ImageBlock(url=f"data:{source.media_type};base64,{source.data}")
    return ImageBlock(url=source.url)


def without_addresses(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """`messages` with a note for each image that the engine would have to fetch.

    Its machine may reach what the caller may not: the caller would choose what it opens.
    """
    return tuple(_replaced(message, tuple(map(_without_address, message.content))) for message in messages)


def _without_address(block: Block) -> Block:
    if isinstance(block, ToolResultBlock):
        return _replaced(block, tuple(map(_held, block.content)))
    return _held(block) if isinstance(block, ImageBlock) else block


def _held(part: TextBlock | ImageBlock) -> TextBlock | ImageBlock:
    if isinstance(part, TextBlock) or part.url[:5].lower() == "data:":
        return part
    return TextBlock(text="[image left out: images at an address are not fetched here; send its bytes]")


def _replaced(holder: Holder, content: tuple[object, ...]) -> Holder:
    return holder if content == holder.content else holder.model_copy(update={"content": content})


def document(block: Document) -> TextBlock:
    """The document's text under its title and context, or a note when it is not text."""
    parts = [f"[document: {block.title}]" if block.title else "[document]", block.context, _document_text(block)]
    return TextBlock(text="\n".join(part for part in parts if part))


def search_result(block: SearchResult) -> TextBlock:
    """The result's title, where it comes from, and its text."""
    parts = ["[search result]", block.title, block.source, *readable(block.content)]
    return TextBlock(text="\n".join(part for part in parts if part))


def server_block(block: ServerBlock) -> TextBlock:
    """What a tool at another provider was asked, or what can be read of its answer."""
    fields = block.model_extra or {}
    if "input" in fields:
        arguments = orjson.dumps(fields["input"]).decode()
        return TextBlock(text=f"[{fields.get('name') or block.type} was called with {arguments}]")
    return TextBlock(text="\n".join([f"[{block.type}]", *readable(fields)]))


def readable(value: Any) -> Iterator[str]:
    """The words a person would read in a nested value, in reading order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from readable(item)
    elif isinstance(value, dict):
        yield from _readable_fields(value)


def _readable_fields(fields: dict[str, Any]) -> Iterator[str]:
    for key in READABLE_KEYS + NESTED_KEYS:
        if key in fields:
            yield from readable(fields[key])
    if fields.get("type") == "text" and "data" in fields:
        yield from readable(fields["data"])


def _document_text(block: Document) -> str:
    match block.source:
        case TextSource(data=text):
            return text
        case ContentSource(content=content):
            return "\n".join(readable(content))
        case Base64Source(media_type=media_type):
            return f"[left out: only text can be read here, not {media_type}]"
    return "[left out: only text sent in the request can be read here]"
