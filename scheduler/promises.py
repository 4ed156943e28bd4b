"""Places in time for callers that were refused, so that the one who comes back finds room.

Owns: the ledger of promises, shared by all API processes, and the bounds on it.
Never: reckons a wait, words a refusal.

A refused caller is told when the next free place is due: after what the lines hold and what was promised before. Who
comes back is known by its key, its agent and what it asks. When its place is due it has it, whatever was promised to
others since; who was told the longest hint comes too early, and waits behind those that are due before it. Newcomers
wait behind all who hold a promise, in fair turns of the agents, so they take nobody's place. A promise nobody comes for
lapses.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from infra import keys
from infra.redis_client import broker_errors
from scheduler import scripts
from scheduler.contract import JobSpec
from scheduler.policy.admission import LONGEST_RETRY_S
from scheduler.policy.claiming import agent_name

GRACE_MS = 10_000  # a caller may come so long after the time it was told
GOOD_SHARE = 0.7  # of the longest wait: a place is told that holds even if answers are longer than expected
SLOWER_LINE = 1.2  # the same for a line without room: starts come so much later than expected
MOST_AGENTS = 64  # more are not told apart
MOST_PROMISES = 20_000
SMOOTHED_STARTS = 8  # so many lately: quick to see an overload begin, slow enough not to follow single callers
LEVEL_MS = 10**13  # lies between two levels: more than any time since 1970 that is met
PARTS = ("places", "lapses", "counts", "arrivals")


@dataclass(frozen=True, slots=True)
class Room:
    """What there is for a request: the soonest start as the lines stood lately, how long a slot usually takes for one,
    and the workers that serve it with their slots; the jobs of its own agent and level that wait there, and how many
    agents ask there, itself included, at its level or a more urgent one."""

    wait_ms: float
    usual_ms: float
    slots: Mapping[str, int]
    own: int = 0
    agents: int = 1

    @property
    def turns_ms(self) -> float:
        """What it waits when all who ask go on asking: its own jobs get one turn in each round of all."""
        return self.own * self.agents * self.usual_ms / max(1, sum(self.slots.values()))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a request may come in, how long it would wait, and whether it kept a promise that way; else when to ask
    again, and whether it was for want of room in the lines."""

    comes_in: bool
    wait_ms: int
    kept: bool = False
    retry_after_s: int = 0
    full: bool = False


class Promises:
    """The ledger. Raises BrokerDown when Redis does not answer."""

    def __init__(self, redis: Redis, queue_limit: int) -> None:
        """`queue_limit` is how many jobs a line may hold."""
        self.queue_limit = queue_limit
        self._promise = redis.register_script(scripts.text("promise"))

    async def ask(self, spec: JobSpec, room: Room) -> Verdict:
        """Let the request in, which keeps a promise it holds, or promise it the next free place."""
        who = spec.identity
        names = [keys.promises(part, spec.request.model) for part in PARTS]
        names += [name_of(worker) for worker in room.slots for name_of in (keys.line, keys.running)]
        arguments: list[str | int | float] = [
            spec.request.digest.hex(), agent_name(who.key_name, who.agent), spec.level, room.wait_ms,
            spec.wait_limit_ms, spec.wait_limit_ms * GOOD_SHARE, max(1.0, room.usual_ms), self.queue_limit,
            LEVEL_MS, LONGEST_RETRY_S, GRACE_MS, SLOWER_LINE, MOST_AGENTS, MOST_PROMISES,
            room.own, room.agents, SMOOTHED_STARTS, *room.slots.values(),
        ]  # fmt: skip
        with broker_errors():
            answer: Any = await self._promise(names, arguments)
        if answer[0]:
            return Verdict(comes_in=True, wait_ms=int(answer[1]), kept=bool(answer[2]))
        return Verdict(False, int(answer[1]), retry_after_s=int(answer[2]), full=bool(answer[3]))
