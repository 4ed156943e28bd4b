"""A prompt as a chain of fingerprints, so that two prompts can be compared without keeping either.

Owns: the fingerprints of system text, tools and each message, and how many tokens a common beginning is.
Never: the text itself, a token's true place: inside one prompt tokens are shared out by characters.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from typing import NamedTuple

from scheduler.contract import GenerationRequest, ImageBlock, Message, Tool

LINK_BYTES = 8  # compared only inside one conversation: 64 bits are plenty
BASE_BYTES = 12  # names files that all conversations share: 96 bits
IMAGE_CHARACTERS = 3_000  # stands for the text that takes as many tokens as a usual picture


@dataclass(frozen=True, slots=True)
class Chain:
    """`messages` holds one fingerprint each. `characters[i]` is the size of the base and the first i messages."""

    system: str
    tools: str
    messages: tuple[str, ...]
    characters: tuple[int, ...]

    @property
    def base(self) -> str:
        """Names system text and tools, which conversations of one kind share."""
        return fingerprint(self.system, self.tools, size=BASE_BYTES)


class ToolsLink(NamedTuple):
    """The fingerprint of a tool list and its characters."""

    name: str
    characters: int


def tools_link(tools: Iterable[Tool]) -> ToolsLink:
    """Most of the work on a usual prompt: who sees one list again and again keeps what this returns."""
    texts = [tool.model_dump_json() for tool in tools]
    return ToolsLink(fingerprint(*texts), sum(map(len, texts)))


def message_texts(request: GenerationRequest) -> list[str]:
    """Each message as JSON."""
    return [message.model_dump_json() for message in request.messages]


def chain(request: GenerationRequest, tools: ToolsLink | None = None, texts: list[str] | None = None) -> Chain:
    """The chain of a normalised request; linear in its size. `tools` is the link of its tools, `texts` are its
    `message_texts`, where they are known."""
    tools = tools or tools_link(request.tools)
    sizes = [len(request.system) + tools.characters]
    links = []
    for message, text in zip(request.messages, texts or message_texts(request), strict=True):
        links.append(fingerprint(text))
        sizes.append(sizes[-1] + _characters(message, text))
    return Chain(fingerprint(request.system), tools.name, tuple(links), tuple(sizes))


def common_messages(one: Chain, other: Chain) -> int:
    """How many first messages both prompts have alike; -1 when already their bases differ."""
    if (one.system, one.tools) != (other.system, other.tools):
        return -1
    pairs = zip(one.messages, other.messages, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def tokens_of(prompt: Chain, first_messages: int, total_tokens: int) -> int:
    """Tokens of the base and the `first_messages` of a prompt of `total_tokens`; -1 messages are no tokens.

    Exact for the whole prompt; a shorter part gets its share by characters.
    """
    whole = prompt.characters[-1]
    if first_messages < 0 or not whole:
        return 0
    return total_tokens * prompt.characters[first_messages] // whole


def common_tokens(held: Chain, held_tokens: int, prompt: Chain) -> int:
    """Of a cache of `held_tokens` that begins with the prompt `held`: how many a new `prompt` can use, about.

    What was generated after `held` counts only when all of `held` is found in `prompt`.
    """
    return tokens_of(held, common_messages(held, prompt), held_tokens)


def fingerprint(*texts: str, size: int = LINK_BYTES) -> str:
    """A hexadecimal name of the texts, which are kept apart: ("ab", "c") and ("a", "bc") differ."""
    hashed = blake2b(digest_size=size)
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        hashed.update(b"%d:" % len(encoded))
        hashed.update(encoded)
    return hashed.hexdigest()


def _characters(message: Message, text: str) -> int:
    images = [block for block in message.content if isinstance(block, ImageBlock)]
    return len(text) - sum(len(image.url) for image in images) + IMAGE_CHARACTERS * len(images)
