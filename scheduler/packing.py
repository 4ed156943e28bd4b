"""A request as the bytes that lie in Redis.

Owns: the packing (JSON, then zlib at its fastest: a body of tool schemas shrinks four to five times in about 1 ms; an
image of 10 MB takes a quarter of a second, so large ones are packed off the event loop).
Never: where the bytes are kept.
"""

import zlib
from hashlib import sha256

from scheduler.contract import GenerationRequest, PackedRequest


def pack(request: GenerationRequest) -> PackedRequest:
    """Equal requests give equal bytes."""
    text = request.model_dump_json().encode()
    body = zlib.compress(text, 1)
    return PackedRequest(
        model=request.model,
        body=body,
        json_bytes=len(text),
        digest=sha256(body).digest(),
        greedy=request.temperature == 0,
    )


def unpack(body: bytes) -> GenerationRequest:
    """The request in the `body` of `pack`'s. Raises zlib.error or pydantic.ValidationError on anything else."""
    return GenerationRequest.model_validate_json(zlib.decompress(body))
