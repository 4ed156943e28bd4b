"""Cold against warm at an address that runs: the first token on a beginning that nobody used, and on the same again.

Owns: the arms and their order in a round.
Never: starts anything; looks behind the address, whose caches are its own.

`cold` is the first agent on a beginning; `same agent` its next turn, which has all of it in its own cache; `new agent`
another one, which shares only system and tools. Each round has a new beginning.
"""

import asyncio
from collections.abc import Awaitable, Callable
from statistics import median

from infra.bench import agents_bodies as bodies
from infra.bench import compare, progress
from infra.bench.address import Address, check_answers
from infra.bench.agents_house import Counter
from infra.bench.agents_session import Cast, Kind, Shape, Talk
from infra.bench.asking import MESSAGES, Outcome, Target
from infra.bench.report import Figures

COLD, SAME, NEW = "cold", "same agent", "new agent"
ANY_SLOT = -1
ROWS = {"first_ms": "first token, ms", "prompt_tokens": "prompt tokens", "cached_tokens": "  of these cached"}


def measured(asked: Address, base_tokens: int, rounds: int, run_id: str) -> Figures:
    """Show and return the figures. Raises ConfigError when nobody answers there, EngineError when a request fails."""
    check_answers(asked.url)
    shape = Counter(asked.url, asked.key, asked.path).sized(Shape(2, 2, 0, (60, 60), 0, 0, 0, 8), base_tokens)
    runs = asyncio.run(_rounds(asked, shape, rounds, run_id))
    compare.show(f"First token on a beginning of {base_tokens} tokens, {rounds} rounds", runs, ROWS)
    compare.judge(runs)
    times = {name: median(run["first_ms"] for run in found) for name, found in runs.items()}
    faster = {name: round(times[COLD] / times[name], 2) for name in (SAME, NEW)}
    print(", ".join(f"{name}: {times_faster:g} times sooner than cold" for name, times_faster in faster.items()))
    return {**compare.as_json(runs), "times_sooner": faster}


async def _rounds(asked: Address, shape: Shape, rounds: int, run_id: str) -> dict[str, list[Figures]]:
    target = asked.target()
    runs: dict[str, list[Figures]] = {COLD: [], SAME: [], NEW: []}
    try:
        # Unmeasured: a server's first request is slower than all others, and it would be a cold one.
        begin = Cast(shape, run_id, f"{run_id}-begin")
        await _ask(target, asked.path, begin, begin.talk(Kind.SIDE, 0), 0)
        with progress.work(asked.name, rounds * len(runs)) as told:
            for number in range(rounds):
                for name, ask in _arms(target, asked.path, Cast(shape, run_id, f"{run_id}-{number}")):
                    runs[name].append(figures(await ask()))
                    told()
    finally:
        await target.close()
    return runs


def _arms(target: Target, path: str, cast: Cast) -> list[tuple[str, Callable[[], Awaitable[Outcome]]]]:
    """In the order in which they have to be asked."""
    first, other = (cast.talk(Kind.MAIN, agent) for agent in range(2))
    return [
        (COLD, lambda: _ask(target, path, cast, first, 0)),
        (SAME, lambda: _ask(target, path, cast, first, 1)),
        (NEW, lambda: _ask(target, path, cast, other, 0)),
    ]


async def _ask(target: Target, path: str, cast: Cast, talk: Talk, turn: int) -> Outcome:
    talk.say(cast.next_words(talk, turn))
    hearing = bodies.Hearing()
    body = bodies.messages_body(talk) if path == MESSAGES else bodies.chat_body(talk, ANY_SLOT)
    outcome = await target.ask(body, bodies.headers(talk), hearing.chunk)
    talk.hear(hearing.reply)
    return outcome


def figures(outcome: Outcome) -> Figures:
    """One row of an arm."""
    if not outcome.fine:  # a refusal is no first token, however soon it comes
        return {"failed": 1, "errors": {outcome.error: 1}}
    tokens = {"prompt_tokens": outcome.prompt_tokens, "cached_tokens": outcome.cached_tokens}
    return {"failed": 0, "first_ms": round(outcome.first_s * 1000, 1), **tokens}
