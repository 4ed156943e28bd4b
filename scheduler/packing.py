"""A request as the bytes that lie in Redis.

Owns: the packing (JSON, then zlib at its fastest: a body of tool schemas shrinks four to five times in about 1 ms; an
image of 10 MB takes a quarter of a second, so large ones are packed off the event loop).
Never: where the bytes are kept.
"""

import zlib
from collections.abc import Iterator
from hashlib import sha256

from scheduler.contract import GenerationRequest, ImageBlock, PackedRequest, ToolResultBlock

IMAGE_BYTES = 4000  # as text of so many tokens as an image of usual size has, about 1,000, whatever its file weighs


def pack(request: GenerationRequest) -> PackedRequest:
    """Equal requests give equal bytes."""
    text = request.model_dump_json().encode()
    body = zlib.compress(text, 1)
    return PackedRequest(
        model=request.model,
        body=body,
        json_bytes=len(text) - sum(max(0, len(image.url) - IMAGE_BYTES) for image in _images(request)),
        digest=sha256(body).digest(),
        greedy=request.temperature == 0,
    )


def unpack(body: bytes) -> GenerationRequest:
    """The request in the `body` of `pack`'s. Raises zlib.error or pydantic.ValidationError on anything else."""
    return GenerationRequest.model_validate_json(zlib.decompress(body))


def _images(request: GenerationRequest) -> Iterator[ImageBlock]:
    for message in request.messages:
        for block in message.content:
            for one in block.content if isinstance(block, ToolResultBlock) else (block,):
                if isinstance(one, ImageBlock):
                    yield one
