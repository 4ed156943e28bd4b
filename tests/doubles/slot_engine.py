"""An engine's slots inside this process: what each holds, and its files, token by token.

Owns: a stand-in for `EngineClient` that a test of the caches can look into: a prompt's tokens follow from its chain, a
file holds the tokens of the slot that was saved, and nothing is reused that is not really there.
Never: time, HTTP.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from infra.errors import EngineError, EngineRefused
from scheduler.contract import GenerationRequest, Message, StopReason, TextBlock
from scheduler.policy.chain import Chain, chain
from workers.llama.client import End, EngineClient, Moved, Prompt

CHARACTERS = 4  # of a token
BYTES_PER_TOKEN = 1000
Tokens = list[str]


def request(system: str, *texts: str) -> GenerationRequest:
    """What a client asks: user and assistant in turns."""
    messages = tuple(
        Message(role="assistant" if number % 2 else "user", content=(TextBlock(text=text),))
        for number, text in enumerate(texts)
    )
    return GenerationRequest(model="m", max_tokens=100, system=system, messages=messages)


def asked(system: str, *texts: str) -> Chain:
    return chain(request(system, *texts))


def tokens_of_prompt(prompt: Chain) -> Tokens:
    """The same beginning gives the same tokens, as many as its characters say."""
    parts = [f"{prompt.system}/{prompt.tools}", *prompt.messages]
    tokens: Tokens = []
    for part, end in zip(parts, prompt.characters, strict=True):
        tokens += [f"{part}:{number}" for number in range(end // CHARACTERS - len(tokens))]
    return tokens


class SlotEngine:
    """`fail` is asked before each save and restore; what it returns is raised."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.held: list[Tokens] = [[] for _ in range(count)]
        self.saves = self.restores = self.prefilled = 0
        self.fail: Callable[[str, int, str], Exception | None] = lambda *_: None
        self.save_bytes_per_s = 5e7
        self.restore_bytes_per_s = 1e9

    @property
    def client(self) -> EngineClient:
        return cast(EngineClient, self)

    def save(self, slot: int, file: str) -> Moved:
        self._fail("save", slot, file)
        self.saves += 1
        data = json.dumps(self.held[slot]).encode() + b"\n"
        size_bytes = len(data) + BYTES_PER_TOKEN * len(self.held[slot])
        try:
            with (self.folder / file).open("wb") as opened:
                opened.write(data)
                opened.truncate(size_bytes)
        except OSError:
            raise EngineRefused("the engine refused: Unable to save slot") from None
        return Moved(len(self.held[slot]), size_bytes, size_bytes / self.save_bytes_per_s * 1000)

    def restore(self, slot: int, file: str) -> Moved:
        """A failure leaves the slot empty, as the real one does."""
        self.held[slot] = []
        self._fail("restore", slot, file)
        self.restores += 1
        try:
            self.held[slot] = self.content(file)
        except (OSError, ValueError):
            raise EngineRefused("the engine refused: Unable to restore slot", status=400) from None
        size_bytes = (self.folder / file).stat().st_size
        return Moved(len(self.held[slot]), size_bytes, size_bytes / self.restore_bytes_per_s * 1000)

    def content(self, file: str) -> Tokens:
        with (self.folder / file).open("rb") as opened:
            return cast(Tokens, json.loads(opened.readline()))

    def prefill(self, slot: int, prompt: Chain, share: float = 1.0) -> Prompt:
        """The engine has taken the prompt; `share` of what was not there is prefilled."""
        wanted = tokens_of_prompt(prompt)
        cached = 0
        for one, other in zip(self.held[slot], wanted, strict=False):
            if one != other:
                break
            cached += 1
        cached = min(cached, len(wanted) - 1)
        done = cached + int((len(wanted) - cached) * share)
        self.held[slot] = wanted[:done]
        self.prefilled += done - cached
        return Prompt(total_tokens=len(wanted), cached_tokens=cached)

    def answer(self, slot: int, prompt: Prompt, text: Chain, reason: StopReason = StopReason.TOOL_USE) -> End:
        """What was generated is found again as the next message of the chain `text`."""
        grown = tokens_of_prompt(text)[prompt.total_tokens :]
        self.held[slot] += grown
        return End(
            stop_reason=reason,
            stop_sequence=None,
            prompt_tokens=prompt.total_tokens,
            cached_tokens=prompt.cached_tokens,
            output_tokens=len(grown),
            prefill_ms=prompt.total_tokens - prompt.cached_tokens,
            decode_ms=1,
        )

    @contextmanager
    def failing(self, what: str, error: EngineError) -> Iterator[None]:
        """Each `what`, "save" or "restore", fails inside the block."""
        self.fail = lambda act, *_: error if act == what else None
        try:
            yield
        finally:
            self.fail = lambda *_: None

    def _fail(self, what: str, slot: int, file: str) -> None:
        error = self.fail(what, slot, file)
        if error is not None:
            raise error
