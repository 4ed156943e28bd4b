"""Messages in one form: same meaning, same bytes.

Owns: the order and completeness of turns. After it, roles alternate and start with the user; each tool call has
exactly one result, in the order of the calls and ahead of other text; nothing is blank. That is the contract's
promise on `GenerationRequest.messages`, which nobody checks again.
Every step looks only at what stands before it, so a conversation that grows keeps its prefix.
Never: the system text and tools (`prefix`), the engine's template.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from api.protocol import notes, schema
from infra.errors import BadRequest
from scheduler.contract import (
    Block,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

Role = Literal["user", "assistant"]

# A turn that has to be there (roles alternate) but says nothing; the words Claude Code itself uses.
NOTHING = TextBlock(text="(no content)")
NO_RESULT = TextBlock(text="no result was recorded")
REMINDER_START, REMINDER_END = "<system-reminder>", "</system-reminder>"


@dataclass(slots=True)
class _Turn:
    role: Role
    blocks: list[Block]


@dataclass(slots=True)
class _Joined:
    """Entries as turns, and the blocks of those that said the last one again."""

    turns: list[_Turn] = field(default_factory=list)
    repeated: list[Block] = field(default_factory=list)


def messages(entries: list[schema.Message], *, merge_repeated: bool = True) -> tuple[tuple[Message, ...], int]:
    """The conversation, normalised, and the characters of repeated assistant messages left out of it. Linear in size.

    Without `merge_repeated` they stay. Raises BadRequest for a block in a role that cannot hold it; the field is its
    path in the body.
    """
    joined = _joined(entries, merge_repeated=merge_repeated)
    turns = _paired(joined.turns)
    if not turns or turns[0].role == "assistant":
        turns.insert(0, _Turn("user", [NOTHING]))
    if turns[-1].role == "assistant":
        _strip_end(turns[-1])
    said = tuple(Message(role=turn.role, content=tuple(turn.blocks)) for turn in turns)
    return said, sum(len(block.model_dump_json()) for block in joined.repeated)


# --- turns --------------------------------------------------------------------------------------------------------


def _joined(entries: list[schema.Message], *, merge_repeated: bool) -> _Joined:
    """Neighbours of one role as one turn; empty assistant entries dropped; a repeated assistant entry said once."""
    joined = _Joined()
    turns = joined.turns
    previous: list[Block] = []
    for index, entry in enumerate(entries):
        role: Role = "assistant" if entry.role == "assistant" else "user"
        blocks = _blocks(entry, f"messages[{index}]")
        if role == "assistant" and not blocks:
            continue
        same_role = bool(turns) and turns[-1].role == role
        if not same_role:
            turns.append(_Turn(role, list(blocks)))
        elif merge_repeated and role == "assistant" and blocks == previous:
            joined.repeated.extend(blocks)
        else:
            turns[-1].blocks.extend(blocks)
        previous = blocks
    return joined


def _strip_end(turn: _Turn) -> None:
    # The engine goes on from the last character; models tokenise a word with the blank before it.
    for index, block in reversed(list(enumerate(turn.blocks))):
        if isinstance(block, TextBlock):
            turn.blocks[index] = TextBlock(text=block.text.rstrip())
            return


# --- calls and results --------------------------------------------------------------------------------------------


def _paired(turns: list[_Turn]) -> list[_Turn]:
    """Every call of an assistant turn answered in the user turn after it, which is added when it is missing."""
    ids = _UniqueIds()
    calls: list[_Call] = []
    paired: list[_Turn] = []
    for turn in turns:
        if turn.role == "assistant":
            blocks, calls = _with_unique_ids(turn.blocks, ids)
        else:
            blocks, calls = _answered(calls, turn.blocks), []
        paired.append(_Turn(turn.role, blocks))
    if calls:
        paired.append(_Turn("user", _answered(calls, [])))
    return paired


@dataclass(frozen=True, slots=True)
class _Call:
    """A call's id as the client wrote it, and as it is now."""

    written: str
    unique: str


class _UniqueIds:
    """Ids as they are; one used before gets a number. Counting from the start keeps earlier turns the same."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._times: dict[str, int] = defaultdict(int)

    def unique(self, written: str) -> str:
        candidate = written
        while candidate in self._used:
            self._times[written] += 1
            candidate = f"{written}-{self._times[written] + 1}"
        self._used.add(candidate)
        return candidate


def _with_unique_ids(blocks: list[Block], ids: _UniqueIds) -> tuple[list[Block], list[_Call]]:
    calls: list[_Call] = []
    renamed: list[Block] = []
    for block in blocks:
        if isinstance(block, ToolUseBlock):
            call = _Call(block.id, ids.unique(block.id))
            calls.append(call)
            renamed.append(block if call.written == call.unique else block.model_copy(update={"id": call.unique}))
        else:
            renamed.append(block)
    return renamed, calls


def _answered(calls: list[_Call], blocks: list[Block]) -> list[Block]:
    """Results in the order of their calls, then all else in its own order; never nothing."""
    open_calls: dict[str, deque[str]] = defaultdict(deque)
    for call in calls:
        open_calls[call.written].append(call.unique)
    results: dict[str, ToolResultBlock] = {}
    rest: list[Block] = []
    for block in blocks:
        if not isinstance(block, ToolResultBlock):
            rest.append(block)
        elif open_calls[block.tool_use_id]:
            unique = open_calls[block.tool_use_id].popleft()
            same = block.tool_use_id == unique
            results[unique] = block if same else block.model_copy(update={"tool_use_id": unique})
        else:
            rest.extend(_orphan(block))
    in_order = [results.get(call.unique) or _missing(call.unique) for call in calls]
    return [*in_order, *rest] or [NOTHING]


def _missing(call_id: str) -> ToolResultBlock:
    return ToolResultBlock(tool_use_id=call_id, content=(NO_RESULT,), is_error=True)


def _orphan(result: ToolResultBlock) -> Iterable[Block]:
    """A result that answers no call of the turn before it: no template takes it, so it is told as text."""
    return [TextBlock(text=f"[result of a tool call that is not here: {result.tool_use_id}]"), *result.content]


# --- blocks -------------------------------------------------------------------------------------------------------


def _blocks(entry: schema.Message, path: str) -> list[Block]:
    converted: list[Block] = []
    for index, block in enumerate(entry.content):
        # Most blocks are text, in whatever role.
        if isinstance(block, schema.Text):
            converted.extend(_text(block))
        else:
            converted.extend(_converted(block, entry.role, f"{path}.content[{index}]"))
    return list(map(_reminder, converted)) if entry.role == "system" else converted


def _reminder(block: Block) -> Block:
    """System text in mid-conversation, in place and marked; hoisting it would change the prefix on every turn."""
    if not isinstance(block, TextBlock) or block.text.lstrip().startswith(REMINDER_START):
        return block
    return TextBlock(text=f"{REMINDER_START}\n{block.text}\n{REMINDER_END}")


def _converted(block: schema.Block, role: str, path: str) -> Iterable[Block]:
    match block:
        case schema.ToolUse():
            _need_role("assistant", role, block.type, path)
            return (ToolUseBlock(id=block.id, name=block.name, input=block.input),)
        case schema.ToolResult():
            _need_role("user", role, block.type, path)
            return (_result(block),)
        case schema.Thinking():
            _need_role("assistant", role, block.type, path)
            return (ThinkingBlock(thinking=block.thinking),) if block.thinking.strip() else ()
        case schema.RedactedThinking():
            return ()
    shown = _shown(block)
    if role == "assistant":
        return (_without_image(part) for part in shown)
    return shown


def _need_role(needed: str, role: str, kind: str, path: str) -> None:
    if role != needed:
        raise BadRequest(f"`{kind}` belongs in a message of the {needed}, not of the {role}", field=f"{path}.type")


def _result(block: schema.ToolResult) -> ToolResultBlock:
    content = tuple(chain.from_iterable(map(_shown, block.content)))
    return ToolResultBlock(tool_use_id=block.tool_use_id, content=content, is_error=bool(block.is_error))


def _shown(block: schema.ResultItem) -> tuple[TextBlock | ImageBlock, ...]:
    """What the model is shown of a block that is not about tools."""
    match block:
        case schema.Text():
            return _text(block)
        case schema.Image():
            return (notes.image(block),)
        case schema.Document():
            return (notes.document(block),)
        case schema.SearchResult():
            return (notes.search_result(block),)
    return (notes.server_block(block),)


def _text(block: schema.Text) -> tuple[TextBlock, ...]:
    return (TextBlock(text=block.text),) if block.text and not block.text.isspace() else ()


def _without_image(block: TextBlock | ImageBlock) -> TextBlock:
    return block if isinstance(block, TextBlock) else TextBlock(text="[image left out: only a user can show one]")
