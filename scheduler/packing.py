"""A request as the bytes that lie in Redis.

Owns: the packing: how long tools and chain are, the tools (`tool_lists`), the chain where it was known, a letter, and
all else as JSON; that is compressed by zlib at its fastest where it is large (a megabyte takes 5 ms, an image of 10 MB
a quarter of a second, so large ones are packed off the event loop).
Never: where the bytes are kept.
"""

import zlib
from collections.abc import Iterator
from hashlib import sha256

import orjson

from scheduler import tool_lists
from scheduler.contract import GenerationRequest, ImageBlock, PackedRequest, ToolResultBlock
from scheduler.policy.chain import Chain, chain, message_texts
from scheduler.tool_lists import ToolList

IMAGE_BYTES = 4000  # as text of so many tokens as an image of usual size has, about 1,000, whatever its file weighs
PLAIN_BYTES = 150_000  # up to here it costs more time to compress a body than to carry it
PLAIN, COMPRESSED = b"j", b"z"
LENGTH_BYTES = 4
_FIELDS = list(GenerationRequest.model_fields)
_BEFORE = set(_FIELDS[: _FIELDS.index("messages")])
_AFTER = set(_FIELDS) - _BEFORE - {"messages", "tools"}


def pack(request: GenerationRequest, tools: ToolList | None = None) -> PackedRequest:
    """Equal requests give equal bytes. `tools` is what is known of its tools."""
    return _packed(request, tools or tool_lists.tool_list(request.tools, keep=False), message_texts(request), b"")


def pack_with_chain(request: GenerationRequest, tools: ToolList) -> tuple[PackedRequest, Chain]:
    """The request packed with its chain, and that chain. To make it anew takes a worker longer than all the rest of
    unpacking; here the messages, most of the work, are written once for both."""
    texts = message_texts(request)
    links = chain(request, tools.link, texts)
    chained = orjson.dumps([links.system, links.messages, links.characters])
    return _packed(request, tools, texts, chained), links


def _packed(request: GenerationRequest, tools: ToolList, texts: list[str], chained: bytes) -> PackedRequest:
    text = _without_tools(request, texts)
    rest = PLAIN + text if len(text) <= PLAIN_BYTES else COMPRESSED + zlib.compress(text, 1)
    lengths = (len(part).to_bytes(LENGTH_BYTES) for part in (tools.packed, chained))
    body = b"".join((*lengths, tools.packed, chained, rest))
    images_bytes = sum(max(0, len(image.url) - IMAGE_BYTES) for image in _images(request))
    return PackedRequest(
        model=request.model,
        body=body,
        json_bytes=len(text) + tools.json_bytes - images_bytes,
        digest=sha256(body).digest(),
        greedy=request.temperature == 0,
    )


def _without_tools(request: GenerationRequest, texts: list[str]) -> bytes:
    """The same as `model_dump_json` gives, of messages that are written already."""
    before, after = request.model_dump_json(include=_BEFORE), request.model_dump_json(include=_AFTER)
    return f'{before[:-1]},"messages":[{",".join(texts)}],{after[1:]}'.encode()


def unpack(body: bytes) -> GenerationRequest:
    """The request in the `body` of `pack`'s. Raises zlib.error or ValueError on anything else."""
    packed_tools, _, text = _parts(body)
    return _request(text, tool_lists.read(packed_tools))


def unpack_with_chain(body: bytes) -> tuple[GenerationRequest, Chain]:
    """The request and its chain. Raises as `unpack`."""
    packed_tools, chained, text = _parts(body)
    tools = tool_lists.read(packed_tools)
    request = _request(text, tools)
    if not chained:
        return request, chain(request, tools.link)
    system, messages, characters = orjson.loads(chained)
    return request, Chain(system, tools.link.name, tuple(messages), tuple(characters))


def _parts(body: bytes) -> tuple[bytes, bytes, bytes]:
    """Tools, chain, and all else as JSON."""
    begin = 2 * LENGTH_BYTES
    middle = begin + int.from_bytes(body[:LENGTH_BYTES])
    end = middle + int.from_bytes(body[LENGTH_BYTES:begin])
    letter, rest = body[end : end + 1], body[end + 1 :]
    return body[begin:middle], body[middle:end], zlib.decompress(rest) if letter == COMPRESSED else rest


def _request(text: bytes, tools: ToolList) -> GenerationRequest:
    return GenerationRequest.model_validate_json(text).model_copy(update={"tools": tools.tools})


def _images(request: GenerationRequest) -> Iterator[ImageBlock]:
    for message in request.messages:
        for block in message.content:
            for one in block.content if isinstance(block, ToolResultBlock) else (block,):
                if isinstance(one, ImageBlock):
                    yield one
