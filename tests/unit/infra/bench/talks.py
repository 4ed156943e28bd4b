"""Conversations for the tests of the agents bench. Never: a test."""

from infra.bench.agents_figures import Turn
from infra.bench.agents_session import Cast, Kind, Shape, Talk
from infra.bench.asking import Outcome


def shape(agents: int = 2, turns: int = 3, subagents: int = 0, sides: int = 0, gap_s: float = 1.0) -> Shape:
    return Shape(agents, turns, 8_000, (100, 600), gap_s, subagents, sides, 16)


def cast(text: str = "text", draws: str = "run", **changes: int) -> Cast:
    return Cast(shape(**changes), draws, text)


def talk(kind: Kind = Kind.MAIN, agent: int = 0, number: int = 0) -> Talk:
    return cast().talk(kind, agent, number)


def turn(
    number: int,
    prompt: int,
    cached: int = 0,
    output: int = 0,
    *,
    conversation: str = "a",
    kind: Kind = Kind.MAIN,
    engine: str = "w1",
    first_s: float = 0.1,
    error: str = "",
) -> Turn:
    outcome = Outcome(first_s, 2 * first_s, prompt, cached, output, error=error)
    return Turn(conversation, kind, number, outcome, engine)
