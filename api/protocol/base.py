"""A base that is to be warmed up, as the request that its conversations would begin with.

Owns: that a file of `warm` goes through the very same steps as a client's body, so that both give the same bytes.
Never: reads a file, sends a job.
"""

from dataclasses import dataclass

from api.protocol.request import Reading, parse
from infra.errors import BadRequest, ConfigError
from infra.warm_files import WarmFile
from scheduler.contract import PackedRequest
from scheduler.policy.chain import Chain

LEVEL = 9  # after everybody's requests
NOBODY = "warm-up"


@dataclass(frozen=True, slots=True)
class Base:
    """System text and tools under the name of their file."""

    file: WarmFile
    chain: Chain
    reading: Reading

    @property
    def name(self) -> str:
        return self.file.path.name

    def request(self, model: str) -> PackedRequest:
        """The shortest request for it, to the engine that serves `model`."""
        return _parsed(self.file, model, self.reading)[0]


def base_of(file: WarmFile, reading: Reading) -> Base:
    """Raises ConfigError that names the file and the field when it is no request."""
    try:
        return Base(file, _parsed(file, "", reading)[1], reading)
    except BadRequest as error:
        raise ConfigError(f"warm: {file.path}: {error.message}") from None


def _parsed(file: WarmFile, model: str, reading: Reading) -> tuple[PackedRequest, Chain]:
    call = parse(file.body, {}, key_name=NOBODY, models=[model], default_level=LEVEL, reading=reading)
    return call.request, call.chain
