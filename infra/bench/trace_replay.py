"""A recorded trace played again: the same sizes, shared beginnings, fan-out and pauses, with words of the bench's own.

Owns: when each request goes out. One that came after another ended waits for that one to end here too, then pauses as
it did: a slower server is not asked faster than its agents could have asked it.
Never: makes a word (`trace_words`). A failed request is counted and not repeated.

What the model says here is not what stands as its answer in the next prompt, which has the recorded length: an answer's
tokens are read again each turn, by every arm alike.
"""

import asyncio
from time import perf_counter

from infra.bench.agents_figures import Turn
from infra.bench.agents_replay import Side
from infra.bench.progress import Told
from infra.bench.trace import Request, Trace
from infra.bench.trace_words import Writer


class TraceReplay:
    """One arm. `told` is called after each request; pauses are `speed` times shorter than recorded."""

    def __init__(self, trace: Trace, writer: Writer, speed: float, side: Side, told: Told) -> None:
        self._trace, self._writer, self._speed = trace, writer, speed
        self._side, self._told = side, told
        self._ended = [asyncio.Event() for _ in trace.requests]
        self._before = _before(trace)
        self._first_s = min(request.at_s for request in trace.requests)
        self._turns: list[Turn] = []

    async def run(self) -> tuple[list[Turn], float]:
        """All turns, and the seconds from the first request's time to the last one's end."""
        began_s = perf_counter()
        await asyncio.gather(*map(self._one, self._trace.requests))
        return self._turns, perf_counter() - began_s

    async def _one(self, request: Request) -> None:
        for earlier in (request.after, self._before[request.n]):
            if earlier is not None:
                await self._ended[earlier].wait()
        pause_s = request.at_s - self._first_s if request.after is None else request.gap_s
        await asyncio.sleep(pause_s / self._speed)
        talk = self._writer.talk(request, self._trace.prompts[request.n], self._trace.places[request.n])
        try:
            outcome, _, engine = await self._side.ask(talk)
        finally:
            self._ended[request.n].set()
        number = self._trace.numbers[request.n]
        self._turns.append(Turn(request.conversation, request.kind, number, outcome, engine))
        self._told()


def _before(trace: Trace) -> list[int | None]:
    """For each request the one before it in its conversation: an agent asks for one answer at a time."""
    last: dict[str, int] = {}
    found: list[int | None] = []
    for request in trace.requests:
        found.append(last.get(request.conversation))
        last[request.conversation] = request.n
    return found
