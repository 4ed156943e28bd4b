"""The tools of a request as the engine takes them, made once for each list in use.

Owns: a list's functions and their JSON, which goes into each further body as it stands.
Never: which of them may be called (`render`).

Looked up by the identity of its tools, since reading 70 kB to find them would cost as much as what is saved:
`scheduler.tool_lists` gives out the same tools for what was packed of the same list.
"""

import functools
from dataclasses import dataclass
from typing import Any

import orjson

from scheduler.contract import Tool
from scheduler.tool_lists import KNOWN_LIST_BYTES, KNOWN_LISTS, SameList, TooLargeToKeep
from workers.llama.grammar import safe_schema


@dataclass(frozen=True, slots=True)
class Functions:
    """Shared by requests: nobody may change `each`. `json` is all of them, for orjson to write into a body."""

    each: tuple[dict[str, Any], ...]
    json: orjson.Fragment

    def named(self, name: str | None) -> list[dict[str, Any]]:
        return [function for function in self.each if function["function"]["name"] == name]


def functions(tools: tuple[Tool, ...]) -> Functions:
    """Those of `tools`, in their order."""
    try:
        return _known(SameList(tools))
    except TooLargeToKeep as found:
        made: Functions = found.made
        return made


@functools.lru_cache(KNOWN_LISTS)
def _known(same: SameList) -> Functions:
    each = tuple(_function(tool) for tool in same.tools)
    written = orjson.dumps(each)
    made = Functions(each, orjson.Fragment(written))
    if len(written) > KNOWN_LIST_BYTES:
        raise TooLargeToKeep(made)
    return made


def _function(tool: Tool) -> dict[str, Any]:
    described = {"name": tool.name, "description": tool.description, "parameters": safe_schema(tool.input_schema)}
    return {"type": "function", "function": described}
