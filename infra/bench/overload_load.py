"""Callers that come at a fixed rate, whatever becomes of those before them, and do as a refusal tells them: once.

Owns: arrivals, the wait that `Retry-After` asks for, the second try, and the API's memory meanwhile.
Never: judges a figure, starts a part.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from infra.bench.asking import Outcome, Target
from infra.bench.house import rss_bytes
from infra.bench.lines import Line
from infra.bench.progress import Told

AGENTS = 20
SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Attempt:
    """One caller: its first try, and its second if it was refused, told when to come again, and that was soon."""

    identified: bool
    first: Outcome
    again: Outcome | None = None

    @property
    def refused(self) -> bool:
        return self.first.retry_after_s >= 0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`per_s` callers a second for `seconds`; refused ones who are told at most `follow_s` come again once.

    So many of a hundred callers do not say who they are: to Corral they are one agent. The others are AGENTS agents in
    turn. All ask for as much work as `line` does.
    """

    line: Line
    per_s: float
    seconds: float
    follow_s: float
    anonymous_of_100: int = 0

    @property
    def count(self) -> int:
        """How many callers come."""
        return int(self.per_s * self.seconds)

    async def all(self, target: Target, seed: str, told: Told) -> list[Attempt]:
        """What became of every caller, once the last answer has ended; `told` is called after each."""
        began_s = perf_counter()
        callers = []
        for number in range(self.count):
            await asyncio.sleep(began_s + number / self.per_s - perf_counter())
            callers.append(asyncio.create_task(self._call(target, seed, number)))
            callers[-1].add_done_callback(lambda _: told())
        return list(await asyncio.gather(*callers))

    async def _call(self, target: Target, seed: str, number: int) -> Attempt:
        # Spread evenly: as a slope is drawn in whole steps.
        share = self.anonymous_of_100
        identified = (number + 1) * share // 100 == number * share // 100
        # A line of its own, so that it is a conversation of its own.
        line = Line(f"agent{number % AGENTS}", f"caller{number}", self.line.fresh_tokens, self.line.output_tokens)
        body, headers = line.body(seed, 0), line.headers
        if not identified:
            del headers["x-agent-id"]
        first = await target.ask(body, headers)
        if not 0 <= first.retry_after_s <= self.follow_s:
            return Attempt(identified, first)
        await asyncio.sleep(first.retry_after_s)
        return Attempt(identified, first, await target.ask(body, headers))


async def memory(pid: int, over: Callable[[], bool]) -> list[int]:
    """Bytes in RAM of a process, twice a second until it is `over`."""
    samples = [rss_bytes(pid)]
    while not over():
        await asyncio.sleep(SAMPLE_S)
        samples.append(rss_bytes(pid))
    return samples
