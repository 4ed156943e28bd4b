"""Says a conversation in the engine's words.

Owns: how each block is written, so that the same history is always the same tokens and a turn begins with all of the
turn before.
Never: puts anything that changes from turn to turn before the end of the conversation.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from scheduler.contract import Block, ImageBlock, Message, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock

NO_VISION_NOTE = "[image omitted: the model has no vision]"
MOVED_IMAGE_NOTE = "[image: shown after the results]"
ERROR_MARK = "[the tool reported an error]"
NO_RESULT_NOTE = "[no result was given for this call]"
LOST_CALL_MARK = "[result of a call that is no longer shown]"

Part = dict[str, Any]
Kind = TypeVar("Kind", TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock)


def joined_turns(messages: Iterable[Message]) -> list[Message]:
    """Messages without empty ones, neighbours of one role joined: some templates refuse two of a role in a row."""
    turns: list[Message] = []
    for message in messages:
        if _is_blank(message):
            continue
        if turns and turns[-1].role == message.role:
            turns[-1] = Message(role=message.role, content=turns[-1].content + message.content)
        else:
            turns.append(message)
    return turns


def is_prefilled(turns: Sequence[Message]) -> bool:
    """The engine goes on from a last message of the assistant, but refuses one with tool calls."""
    return bool(turns) and turns[-1].role == "assistant" and not _of(turns[-1], ToolUseBlock)


def said(system: str, turns: Sequence[Message], *, vision: bool) -> Iterator[Part]:
    """The messages as the engine takes them."""
    if system:
        yield {"role": "system", "content": system}
    calls: list[ToolUseBlock] = []
    last = len(turns) - 1
    for number, turn in enumerate(turns):
        if turn.role == "user":
            yield from _user(turn, calls, vision=vision)
            calls = []
            continue
        yield _assistant(turn, trimmed=number == last)
        calls = _of(turn, ToolUseBlock)
        if number == last:
            yield from (_tool_message(call.id, NO_RESULT_NOTE) for call in calls)


def _assistant(turn: Message, *, trimmed: bool) -> Part:
    """Blocks of one kind were cut from one text by the API, so they are joined with nothing between them."""
    text = "".join(block.text for block in _of(turn, TextBlock))
    # A blank at the end of a given beginning would be a token of its own, which no model expects there.
    message: Part = {"role": "assistant", "content": text.rstrip() if trimmed else text}
    if thoughts := _of(turn, ThinkingBlock):
        message["reasoning_content"] = "".join(block.thinking for block in thoughts)
    if calls := _of(turn, ToolUseBlock):
        message["tool_calls"] = [_call(call) for call in calls]
    return message


def _call(call: ToolUseBlock) -> Part:
    # The standard library takes integers of any size; orjson refuses those beyond 64 bits.
    arguments = json.dumps(call.input, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _user(turn: Message, calls: Sequence[ToolUseBlock], *, vision: bool) -> Iterator[Part]:
    """Results first, in the order of their calls; then everything else as one user message."""
    results = {block.tool_use_id: block for block in reversed(_of(turn, ToolResultBlock))}
    answered = [(call.id, results.pop(call.id, None)) for call in calls]
    parts: list[Part] = []
    for identity, result in answered:
        yield _tool_message(identity, _result_text(result, vision=vision) if result else NO_RESULT_NOTE)
        parts += _result_images(result, vision=vision)
    for result in reversed(results.values()):
        parts.append(_text_part(f"{LOST_CALL_MARK}\n{_result_text(result, vision=vision)}"))
        parts += _result_images(result, vision=vision)
    parts += [part for block in turn.content for part in _user_part(block, vision=vision)]
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


def _result_images(result: ToolResultBlock | None, *, vision: bool) -> list[Part]:
    if result is None or not vision:
        return []
    return [_image_part(block) for block in result.content if isinstance(block, ImageBlock)]


def _plain_if_text(parts: list[Part]) -> str | list[Part]:
    """One string where there is only text: not every template takes parts."""
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _tool_message(identity: str, text: str) -> Part:
    return {"role": "tool", "tool_call_id": identity, "content": text}


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _image_part(block: ImageBlock) -> Part:
    return {"type": "image_url", "image_url": {"url": block.url}}


def _is_blank(message: Message) -> bool:
    return all(isinstance(block, TextBlock) and not block.text.strip() for block in message.content)


def _of(turn: Message, kind: type[Kind]) -> list[Kind]:
    return [block for block in turn.content if isinstance(block, kind)]
