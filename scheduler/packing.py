"""A request as the bytes that lie in Redis.

Owns: the packing (JSON, then zlib at its fastest: a body of tool schemas shrinks four to five times in about 1 ms; an
image of 10 MB takes a quarter of a second, so large ones are packed off the event loop).
Never: where the bytes are kept.
"""

import zlib

from scheduler.contract import GenerationRequest, PackedRequest


def pack(request: GenerationRequest) -> PackedRequest:
    """Equal requests give equal bytes."""
    text = request.model_dump_json().encode()
    return PackedRequest(request.model, zlib.compress(text, 1), len(text))


def unpack(body: bytes) -> GenerationRequest:
    """The request in the `body` of `pack`'s. Raises zlib.error or pydantic.ValidationError on anything else."""
    return GenerationRequest.model_validate_json(zlib.decompress(body))
