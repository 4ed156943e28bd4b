"""Says a conversation in the engine's words.

Owns: how each block is written, so that the same history is always the same tokens and a turn begins with all of the
turn before.
Never: puts anything that changes from turn to turn before the end of the conversation; repairs one. What a
conversation always is stands in `scheduler.contract.GenerationRequest`.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from scheduler.contract import Block, ImageBlock, Message, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock

NO_VISION_NOTE = "[image omitted: the model has no vision]"
MOVED_IMAGE_NOTE = "[image: shown after the results]"
ERROR_MARK = "[the tool reported an error]"

# The standard library takes integers of any size; orjson refuses those beyond 64 bits.
_ARGUMENTS = json.JSONEncoder(ensure_ascii=False)

Part = dict[str, Any]
Kind = TypeVar("Kind", TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock)


def is_prefilled(messages: Sequence[Message]) -> bool:
    """The engine goes on from a last message of the assistant."""
    return bool(messages) and messages[-1].role == "assistant"


def said(system: str, messages: Sequence[Message], *, vision: bool, call_joint: str = "") -> Iterator[Part]:
    """The messages as the engine takes them. `call_joint` is what its template writes between text and calls."""
    if system:
        yield {"role": "system", "content": system}
    for message in messages:
        if message.role == "user":
            yield from _user(message, vision=vision)
        else:
            yield _assistant(message, call_joint)


def _assistant(message: Message, call_joint: str) -> Part:
    """Blocks of one kind were cut from one text by the API, so they are joined with nothing between them.

    The engine gave what stands before the calls out as the end of the text; the template will write it again.
    """
    part: Part = {"role": "assistant", "content": "".join(block.text for block in _of(message, TextBlock))}
    if thoughts := _of(message, ThinkingBlock):
        part["reasoning_content"] = "".join(block.thinking for block in thoughts)
    if calls := _of(message, ToolUseBlock):
        part["content"] = part["content"].removesuffix(call_joint)
        part["tool_calls"] = [_call(call) for call in calls]
    return part


def _call(call: ToolUseBlock) -> Part:
    arguments = _ARGUMENTS.encode(call.input)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _user(message: Message, *, vision: bool) -> Iterator[Part]:
    """A message of its own for each result; then all else, and the images of the results ahead of it, as one more."""
    parts: list[Part] = []
    for result in _of(message, ToolResultBlock):
        yield {"role": "tool", "tool_call_id": result.tool_use_id, "content": _result_text(result, vision=vision)}
        parts += _result_images(result, vision=vision)
    parts += [part for block in message.content for part in _user_part(block, vision=vision)]
    if parts:
        yield {"role": "user", "content": _plain_if_text(parts)}


def _user_part(block: Block, *, vision: bool) -> list[Part]:
    if isinstance(block, TextBlock):
        return [_text_part(block.text)]
    if isinstance(block, ImageBlock):
        return [_image_part(block)] if vision else [_text_part(NO_VISION_NOTE)]
    return []


def _result_text(result: ToolResultBlock, *, vision: bool) -> str:
    """Tool messages hold text only; an image in a result is shown in the user message that follows."""
    image_note = MOVED_IMAGE_NOTE if vision else NO_VISION_NOTE
    text = "\n".join(block.text if isinstance(block, TextBlock) else image_note for block in result.content)
    return f"{ERROR_MARK}\n{text}" if result.is_error else text


def _result_images(result: ToolResultBlock, *, vision: bool) -> list[Part]:
    return [_image_part(block) for block in result.content if isinstance(block, ImageBlock)] if vision else []


def _plain_if_text(parts: list[Part]) -> str | list[Part]:
    """One string where there is only text: not every template takes parts."""
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _image_part(block: ImageBlock) -> Part:
    return {"type": "image_url", "image_url": {"url": block.url}}


def _of(message: Message, kind: type[Kind]) -> list[Kind]:
    return [block for block in message.content if isinstance(block, kind)]
