"""The stand-in engine's slots: who waits for which, and what each remembers.

Owns: slots with their simulated prefix cache, the pace of prefill and decode, the counters.
Never: HTTP, or what an answer says. The standard library only.
"""

import asyncio
import itertools
import time
from dataclasses import dataclass, field

from tests.doubles.standin_script import JsonObject


@dataclass(frozen=True)
class Refusal:
    """An error answer in the engine's own shape."""

    status: int
    message: str
    kind: str
    extra: tuple[tuple[str, int], ...] = ()

    def body(self) -> JsonObject:
        return {"code": self.status, "message": self.message, "type": self.kind, **dict(self.extra)}


@dataclass
class Slot:
    """One sequence: the words it holds, and the request it serves now."""

    number: int
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    cached: list[str] = field(default_factory=list)
    waiting: int = 0
    task: int = -1
    processing: bool = False
    prompt_tokens: int = 0
    reused_tokens: int = 0
    decoded: int = 0
    used_at: float = 0

    def common(self, prompt: list[str]) -> int:
        """How many first words of `prompt` this slot already holds; one is always left to process."""
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(self.cached, prompt, strict=False))
        return min(sum(1 for _ in pairs), len(prompt) - 1)


class SlotTable:
    """All slots of one engine, with their pace (tokens per second, each slot for itself) and counters."""

    def __init__(self, count: int, n_ctx: int, prefill_tokens_per_s: float, decode_tokens_per_s: float) -> None:
        self.slots = [Slot(number) for number in range(count)]
        self.n_ctx = n_ctx
        self.prefill_tokens_per_s = prefill_tokens_per_s
        self.decode_tokens_per_s = decode_tokens_per_s
        self.moving = asyncio.Lock()
        self.frozen = False
        self.leaked: list[bytes] = []
        self.tasks = itertools.count()
        self.hurried_tasks = 0
        self.prompt_total = 0
        self.predicted_total = 0

    def choose(self, id_slot: int, prompt: list[str]) -> Slot:
        """The pinned slot (a number past the last wraps), else the idle one that holds most of the prompt."""
        if id_slot >= 0:
            return self.slots[id_slot % len(self.slots)]
        idle = [slot for slot in self.slots if not slot.lock.locked()]
        if idle:
            return max(idle, key=lambda slot: (slot.common(prompt), -slot.used_at))
        return min(self.slots, key=lambda slot: slot.waiting)

    def too_long(self, tokens: int) -> Refusal | None:
        """The refusal of a prompt of so many tokens, if the window is smaller."""
        if tokens <= self.n_ctx:
            return None
        told = f"request ({tokens} tokens) exceeds the available context size ({self.n_ctx} tokens), try increasing it"
        return Refusal(400, told, "exceed_context_size_error", (("n_prompt_tokens", tokens), ("n_ctx", self.n_ctx)))

    def hurry(self) -> None:
        """The answers that are being said now are said to their end at once; later ones at their own pace."""
        self.hurried_tasks = next(self.tasks) + 1

    def in_hurry(self, slot: Slot) -> bool:
        return slot.task < self.hurried_tasks

    async def stand_still(self, seconds: float) -> None:
        """Nothing else is computed for so long, as while the real engine moves a file."""
        async with self.moving:
            await asyncio.sleep(seconds)

    async def freeze(self) -> None:
        """Nothing is computed any more, whoever leaves."""
        self.frozen = True
        if not self.moving.locked():
            await self.moving.acquire()  # for good: the loop does not end what it hangs in when its client leaves
        await asyncio.Event().wait()

    def describe(self) -> list[JsonObject]:
        """The body of GET /slots."""
        return [
            {
                "id": slot.number,
                "n_ctx": self.n_ctx,
                "speculative": False,
                "is_processing": slot.processing,
                "id_task": slot.task,
                "n_prompt_tokens": slot.prompt_tokens,
                "n_prompt_tokens_processed": slot.prompt_tokens - slot.reused_tokens,
                "n_prompt_tokens_cache": slot.reused_tokens,
                "next_token": [{"n_decoded": slot.decoded}],
            }
            for slot in self.slots
        ]

    def metrics(self) -> str:
        """The body of GET /metrics."""
        values = {
            "prompt_tokens_total": self.prompt_total,
            "tokens_predicted_total": self.predicted_total,
            "requests_processing": sum(slot.processing for slot in self.slots),
            "requests_deferred": sum(slot.waiting for slot in self.slots),
        }
        return "".join(f"llamacpp:{name} {value}\n" for name, value in values.items())


class Pace:
    """Deadlines at a fixed rate from one start, so that late sleeps do not add up."""

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self.start = time.monotonic()

    async def reach(self, count: int) -> None:
        """Until the moment at which `count` units are due."""
        await asyncio.sleep(max(0.0, self.start + count / self.per_s - time.monotonic()))

    async def reach_past(self, moving: asyncio.Lock, count: int) -> None:
        """As `reach`, and later by as long as the engine stood still."""
        await self.reach(count)
        began = time.monotonic()
        async with moving:
            self.start += time.monotonic() - began

    def took_ms(self) -> float:
        return (time.monotonic() - self.start) * 1000
