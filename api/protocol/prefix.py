"""The part of a prompt that all turns of a conversation share: system text, tools and how they may be chosen.

Owns: what is dropped from the system text and the tools, and the words put in place of it.
Never: a message.
"""

import functools
from collections.abc import Sequence
from typing import Any

import orjson

from api.protocol.schema import Text, Tool, ToolChoice
from infra.errors import BadRequest
from scheduler import contract

# Claude Code's first system block. It differs from conversation to conversation: left in, no two share a prefix.
ATTRIBUTION = "x-anthropic-billing-header:"
# Blocks are paragraphs of one text; the blank line is what the engine's templates put between system parts as well.
BETWEEN_BLOCKS = "\n\n"
# Together they bound what the shared tools may hold: 16 MB of JSON.
SHARED_TOOLS = 256
SHARED_TOOL_BYTES = 65_536


def system_text(blocks: list[Text], removed_tools: Sequence[str]) -> tuple[str, int]:
    """The system prompt as one text, without attribution, with a note on removed tools at its end; and the
    characters of the attribution.

    The note stands last so that what comes before it stays the same bytes with and without such tools.
    """
    parts = [_without_attribution(block.text) for block in blocks]
    dropped = sum(len(block.text) - len(part) for block, part in zip(blocks, parts, strict=True))
    if removed_tools:
        parts.append(f"These tools are not available here and must not be called: {', '.join(removed_tools)}.")
    return BETWEEN_BLOCKS.join(part for part in parts if part.strip()), dropped


def split_tools(tools: list[Tool]) -> tuple[tuple[contract.Tool, ...], tuple[str, ...]]:
    """The tools that the client runs itself, and the names of the others, each once.

    A tool without `input_schema` runs at a provider (web search and its like) or has a schema only its provider knows.
    Raises BadRequest for a tool without a name and for a name used twice.
    """
    kept: dict[str, contract.Tool] = {}
    removed: dict[str, None] = {}
    for index, tool in enumerate(tools):
        if tool.input_schema is None:
            removed[_any_name(tool, index)] = None
            continue
        if tool.name is None:
            raise BadRequest("is required", field=f"tools[{index}].name")
        if tool.name in kept:
            raise BadRequest("is used by an earlier tool; names must differ", field=f"tools[{index}].name")
        kept[tool.name] = _shared(tool.name, tool.description or "", tool.input_schema)
    return tuple(kept.values()), tuple(removed)


def tool_choice(
    choice: ToolChoice | None, tools: tuple[contract.Tool, ...], removed_tools: Sequence[str]
) -> contract.ToolChoice:
    """How tools may be chosen. Without tools, or when the tool asked for was removed, the model answers freely.

    Raises BadRequest when a tool is asked for by a name that no tool has.
    """
    if choice is None or not tools:
        return contract.ToolChoice()
    parallel = not choice.disable_parallel_tool_use
    if choice.type != "tool":
        return contract.ToolChoice(mode=choice.type, parallel=parallel)
    if choice.name is None:
        raise BadRequest("is required when the type is `tool`", field="tool_choice.name")
    if choice.name in removed_tools:
        return contract.ToolChoice(parallel=parallel)
    if all(tool.name != choice.name for tool in tools):
        raise BadRequest("names no tool of this request", field="tool_choice.name")
    return contract.ToolChoice(mode="tool", name=choice.name, parallel=parallel)


def _shared(name: str, description: str, schema: dict[str, Any]) -> contract.Tool:
    """The tool, one object for all requests that hold it, so that a list read once is known again without reading it.

    Measured with 80 kB of tools: 2 us here, and 130 us less for the list's fingerprint (`request`).
    """
    described = orjson.dumps([name, description, schema])
    if len(described) > SHARED_TOOL_BYTES:
        return contract.Tool(name=name, description=description, input_schema=schema)
    return _tool_of(described)


@functools.lru_cache(maxsize=SHARED_TOOLS)
def _tool_of(described: bytes) -> contract.Tool:
    name, description, schema = orjson.loads(described)
    return contract.Tool(name=name, description=description, input_schema=schema)


def _without_attribution(text: str) -> str:
    if not text.lstrip().startswith(ATTRIBUTION):
        return text
    return text.lstrip().partition("\n")[2]


def _any_name(tool: Tool, index: int) -> str:
    name = tool.name or tool.type
    if not name:
        raise BadRequest("is required", field=f"tools[{index}].name")
    return name
