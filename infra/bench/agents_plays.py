"""What is played: agents that are made up, or a recorded trace.

Owns: turning either into a play that every arm can play with words of its own.
Never: asks by itself, knows an arm.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from infra.bench.agents_figures import Turn
from infra.bench.agents_house import Counter
from infra.bench.agents_replay import Replay, Side
from infra.bench.agents_session import Cast, Kind, Shape
from infra.bench.progress import Told
from infra.bench.trace import Trace
from infra.bench.trace_replay import TraceReplay
from infra.bench.trace_words import Scale, Writer

Bases = Mapping[Kind, int]  # tokens of what all conversations of a kind begin with


class Part(Protocol):
    """The play of one arm in one round."""

    bases: Bases

    async def run(self, side: Side, told: Told) -> tuple[list[Turn], float]:
        """All turns, and the seconds from the first one's start to the last one's end."""
        ...


@dataclass(frozen=True, slots=True)
class Play:
    """`about` in words; `shape` says how many conversations there are; `requests` are those of one arm in a round.
    `part(counter, text)` is one arm's, whose words come from `text`."""

    about: str
    shape: Shape
    requests: int
    part: Callable[[Counter, str], Part]


class Score(Protocol):
    """Becomes a play once somebody counts tokens."""

    def play(self, counter: Counter, run_id: str) -> Play: ...


@dataclass(frozen=True, slots=True)
class Made:
    """Agents of this shape, their base of so many tokens."""

    shape: Shape
    base_tokens: int

    def play(self, counter: Counter, run_id: str) -> Play:
        shape = counter.sized(self.shape, self.base_tokens)
        return Play(shape.life, shape, shape.requests, lambda where, text: _MadePart(Cast(shape, run_id, text), where))


@dataclass(frozen=True, slots=True)
class Traced:
    """A recorded trace, its pauses `speed` times shorter."""

    trace: Trace
    speed: float

    def play(self, counter: Counter, run_id: str) -> Play:  # noqa: ARG002  # a trace draws nothing
        scale, trace = Scale.of(counter, self.trace), self.trace
        subagents, sides = trace.most(Kind.SUBAGENT), trace.most(Kind.SIDE)
        shape = Shape(trace.sessions, trace.turns, 0, (0, 0), 0.0, subagents, sides, 0)
        about = f"{trace.about}, pauses as recorded" + (f" / {self.speed:g}" if self.speed != 1 else "")
        return Play(
            about, shape, len(trace.requests), lambda _, text: _TracedPart(trace, Writer(scale, text), self.speed)
        )


class _MadePart:
    def __init__(self, cast: Cast, counter: Counter) -> None:
        self._cast = cast
        self.bases: Bases = {kind: counter.base_tokens(cast, kind) for kind in (Kind.MAIN, Kind.SUBAGENT)}

    async def run(self, side: Side, told: Told) -> tuple[list[Turn], float]:
        return await Replay(self._cast, side, told).run()


class _TracedPart:
    def __init__(self, trace: Trace, writer: Writer, speed: float) -> None:
        self._trace, self._writer, self._speed = trace, writer, speed
        self.bases: Bases = {kind: trace.base_tokens(kind) for kind in Kind}

    async def run(self, side: Side, told: Told) -> tuple[list[Turn], float]:
        return await TraceReplay(self._trace, self._writer, self._speed, side, told).run()
