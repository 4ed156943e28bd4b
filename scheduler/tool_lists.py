"""What is made of a list of tools, made once: an agent sends the same 70 kB of them each turn.

Owns: a list's fingerprint and its packed bytes, kept for the lists in use; reading those bytes again.
Never: what else a request holds (`packing`).

Looked up by the identity of its tools where a list was read (`api.protocol.prefix` makes one object of equal tools;
`api.protocol.known_tools` does not even read most lists), since looking through 70 kB to find it would cost as much as
what is saved; and by its packed bytes where these have come. Of a usual body of 80 kB that saves nine tenths of a
worker's unpacking.
"""

import zlib
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from scheduler.contract import Tool
from scheduler.policy.chain import ToolsLink, tools_link

# Together they bound what is kept alive to 8 MB of JSON here, and as much again where lists are kept in another form:
# in the API by their bytes (`known_tools`), in a worker as the engine takes them (`functions`).
KNOWN_LISTS = 16
KNOWN_LIST_BYTES = 500_000
KNOWN_PACKED_BYTES = KNOWN_LIST_BYTES  # what is longer is not even looked up

_TOOLS = TypeAdapter(tuple[Tool, ...])


class ToolList(NamedTuple):
    """`json_bytes` is the size of `packed` before it was compressed."""

    tools: tuple[Tool, ...]
    link: ToolsLink
    packed: bytes
    json_bytes: int


def tool_list(tools: tuple[Tool, ...], *, keep: bool) -> ToolList:
    """What is made of `tools`; `keep` says that the list is no larger than KNOWN_LIST_BYTES."""
    return _kept(SameList(tools)) if keep else _made(tools)


def read(packed: bytes) -> ToolList:
    """The list of which `packed` was made. Raises zlib.error or pydantic.ValidationError on anything else."""
    if len(packed) > KNOWN_PACKED_BYTES:
        return _read(packed)
    try:
        return _known(packed)
    except TooLargeToKeep as found:
        large: ToolList = found.made
        return large


class SameList:
    """A tool list that equals only a list of the same objects."""

    __slots__ = ("tools",)

    def __init__(self, tools: tuple[Tool, ...]) -> None:
        self.tools = tools

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.tools)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameList) and list(map(id, self.tools)) == list(map(id, other.tools))


@lru_cache(KNOWN_LISTS)
def _kept(same: SameList) -> ToolList:
    return _made(same.tools)


def _made(tools: tuple[Tool, ...]) -> ToolList:
    if not tools:
        return ToolList((), tools_link(()), b"", 0)
    text = _TOOLS.dump_json(tools)
    return ToolList(tools, tools_link(tools), zlib.compress(text, 1), len(text))


class TooLargeToKeep(Exception):
    """Carries what was `made` past `lru_cache`, which keeps no errors: few packed bytes can be megabytes of JSON."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made


@lru_cache(KNOWN_LISTS)
def _known(packed: bytes) -> ToolList:
    tools = _read(packed)
    if tools.json_bytes > KNOWN_LIST_BYTES:
        raise TooLargeToKeep(tools)
    return tools


def _read(packed: bytes) -> ToolList:
    if not packed:
        return _made(())
    text = zlib.decompress(packed)
    tools = _TOOLS.validate_json(text)
    return ToolList(tools, tools_link(tools), packed, len(text))
