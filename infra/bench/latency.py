"""Time to first token and requests per second, the gateway beside its own engine.

Owns: the order A B A B inside one run, so that both sides meet the same machine, and that both find the same slot warm.
Never: starts anything.

A = the gateway's /v1/messages. B = the same prompt, rendered, straight to the engine, pinned to the slot that A used.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count
from statistics import median
from typing import Self

from infra.bench.asking import CHAT, MESSAGES, Outcome, Target, side_by_side
from infra.bench.bodies import Conversation
from infra.bench.house import House
from infra.bench.progress import Told
from infra.bench.report import Figures, spread_ms
from infra.errors import EngineError

GROWTH = 10  # turns after which a conversation starts over, so that it stays near the size asked for
PAIRS_A_TURN = 5


def _nobody() -> None:
    """Nobody wants to know how far it is."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked: bodies of `size_bytes`, answers of at most `max_tokens`. `seed` makes the text of each run new."""

    seed: str
    size_bytes: int
    max_tokens: int
    stop: tuple[str, ...] = ()

    def of_arm(self, name: str) -> "Load":
        """The same work in other words: arms that share an engine must not find each other's texts in its cache."""
        # Of one length for all, and fit for a header, whatever an arm is called.
        return replace(self, seed=f"{self.seed}-{blake2b(name.encode(), digest_size=4).hexdigest()}")

    def conversation(self, agent: str) -> Conversation:
        return Conversation(self.seed, agent, self.size_bytes, self.max_tokens)


class Sides:
    """Both sides of one house."""

    def __init__(self, house: House, load: Load) -> None:
        self.house, self.load = house, load
        self.gateway = Target(house.url, house.key, MESSAGES)
        self.engine = Target(house.engine.url, house.engine.key, CHAT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.gateway.close()
        await self.engine.close()

    async def ask_gateway(self, talk: Conversation, turns: int, ask: str) -> Outcome:
        return await self.gateway.ask(talk.messages_body(turns, ask), talk.headers)

    async def ask_engine(self, talk: Conversation, turns: int, ask: str, slot: int) -> Outcome:
        body = talk.chat_body(turns, ask, slot, self.load.stop)
        return await self.engine.ask(body, {"content-type": "application/json"})

    async def warm(self, talk: Conversation) -> int:
        """One unmeasured request; the slot it was served in. Raises EngineError when it fails."""
        outcome = fine(await self.ask_gateway(talk, 0, "begin"))
        return outcome.slot


async def first_token(sides: Sides, pairs: int, told: Told = _nobody) -> Figures:
    """`pairs` times A, then B; `told` is called after each. Raises EngineError when a request fails.

    A turn that is new is asked once unmeasured, so that both find all but the newest text in the slot.
    """
    talk = sides.load.conversation("first")
    slot = await sides.warm(talk)
    ours: list[Outcome] = []
    theirs: list[Outcome] = []
    for number in range(pairs):
        turns = number // PAIRS_A_TURN % GROWTH
        if number % PAIRS_A_TURN == 0:
            fine(await sides.ask_engine(talk, turns, f"request {0:06}", slot))
        ours.append(fine(await sides.ask_gateway(talk, turns, f"request {2 * number + 1:06}")))
        told()
        theirs.append(fine(await sides.ask_engine(talk, turns, f"request {2 * number + 2:06}", slot)))
        told()
    added = [a.first_s - b.first_s for a, b in zip(ours, theirs, strict=True)]
    whole = [a.whole_s - b.whole_s for a, b in zip(ours, theirs, strict=True)]
    return {
        "pairs": pairs,
        "gateway_first_ms": spread_ms([o.first_s for o in ours]),
        "engine_first_ms": spread_ms([o.first_s for o in theirs]),
        "added_first_ms": spread_ms(added),
        "added_p50_of_medians_ms": _ms(median(o.first_s for o in ours) - median(o.first_s for o in theirs)),
        "added_whole_p50_ms": _ms(median(whole)),
        "same_work": _same_work(ours, theirs),
    }


async def throughput(sides: Sides, clients: int, requests: int, told: Told = _nobody) -> Figures:
    """`requests` requests from `clients` clients, A B A B. Raises EngineError when a request fails."""
    talks = [sides.load.conversation(f"client{client}") for client in range(clients)]
    slots = [await sides.warm(talk) for talk in talks]
    # More clients than slots: on the engine's side too, one request per slot at a time, or it may stall.
    turn_of = {slot: asyncio.Lock() for slot in slots}

    numbers = count(1)

    async def ours(client: int, _: int) -> Outcome:
        outcome = fine(await sides.ask_gateway(talks[client], 0, f"request {next(numbers):06}"))
        told()
        return outcome

    async def theirs(client: int, _: int) -> Outcome:
        slot = slots[client]
        async with turn_of[slot]:
            outcome = fine(await sides.ask_engine(talks[client], 0, f"request {next(numbers):06}", slot))
        told()
        return outcome

    rates: dict[str, list[float]] = {"gateway": [], "engine": []}
    for _ in range(2):
        for name, side in (("gateway", ours), ("engine", theirs)):
            _, took_s = await side_by_side(side, clients, requests)
            rates[name].append(requests / took_s)
    gateway, engine = (sum(rates[name]) / 2 for name in ("gateway", "engine"))
    return {
        "clients": clients,
        "requests": requests,
        "gateway_per_s": [round(rate, 2) for rate in rates["gateway"]],
        "engine_per_s": [round(rate, 2) for rate in rates["engine"]],
        "ratio": round(gateway / engine, 3),
    }


def _same_work(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Figures:
    """What shows that both sides did the same: tokens of prompt, cache and answer, as medians [gateway, engine]."""
    names = ("prompt_tokens", "cached_tokens", "output_tokens")
    return {name: [median(getattr(o, name) for o in side) for side in (ours, theirs)] for name in names}


def fine(outcome: Outcome) -> Outcome:
    """The outcome of a request that succeeded. Raises EngineError with the error of one that did not."""
    if outcome.error:
        raise EngineError(f"a request of the bench failed: {outcome.error}")
    return outcome


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
