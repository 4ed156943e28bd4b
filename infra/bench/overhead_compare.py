"""Time to first token and requests a second of several addresses in turn.

Owns: one round of one address.
Never: looks behind an address; what a gateway adds to its own engine is `overhead`'s.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path

from infra.bench import compare, report
from infra.bench.address import Address, check_answers
from infra.bench.asking import MESSAGES, Outcome, same_work, side_by_side
from infra.bench.bodies import Conversation
from infra.bench.latency import Load
from infra.bench.progress import Told
from infra.bench.report import Figures

ANY_SLOT = -1
ROWS = {
    "first_p50_ms": "first token, one client, p50, ms",
    "first_p99_ms": "first token, one client, p99, ms",
    "whole_p50_ms": "whole answer, one client, p50, ms",
    "per_s": "requests a second, all clients",
    "prompt_tokens": "prompt tokens, mean",
    "cached_tokens": "  of these cached",
    "output_tokens": "output tokens, mean",
}


def bench(
    asked: Sequence[Address],
    load: Load,
    rounds: int,
    singles: int,
    clients: int,
    requests: int,
    *,
    command: str,
    json_file: Path | None,
) -> None:
    """`singles` requests of one client, then `requests` of `clients` clients, each round at each address.

    Raises ConfigError when nobody answers at one of them, EngineError when a request fails.
    """
    for one in asked:
        check_answers(one.url)
    arms = {one.name: partial(_round, one, load, singles, clients, requests) for one in asked}
    runs = asyncio.run(compare.in_turn(arms, rounds, singles + requests))
    compare.show(f"{load.size_bytes} bytes a request, {clients} clients", runs, ROWS)
    report.save(json_file, command, compare.as_json(runs))
    compare.judge(runs)


async def _round(
    asked: Address, load: Load, singles: int, clients: int, requests: int, number: int, told: Told
) -> Figures:
    target, numbers, load = asked.target(), count(), load.of_arm(asked.name)

    async def ask(talk: Conversation) -> Outcome:
        words = f"{number} request {next(numbers):06}"
        if asked.path == MESSAGES:
            return await target.ask(talk.messages_body(0, words), talk.headers)
        body = talk.chat_body(0, words, ANY_SLOT, load.stop)
        return await target.ask(body, {"content-type": "application/json"})

    async def counted(client: int, _: int) -> Outcome:
        outcome = await ask(talks[client])
        told()
        return outcome

    talks = [load.conversation(f"client{client}") for client in range(clients)]
    try:
        for talk in talks:
            await ask(talk)  # unmeasured: what all prompts of a conversation share is in the cache then
        alone, _ = await side_by_side(lambda _, number: counted(0, number), 1, singles)
        crowd, took_s = await side_by_side(counted, clients, requests)
    finally:
        await target.close()
    return figures(alone, crowd, took_s)


def figures(alone: Sequence[Outcome], crowd: Sequence[Outcome], took_s: float) -> Figures:
    fine, failed = [o for o in alone if o.fine], [o for o in (*alone, *crowd) if not o.fine]
    found: Figures = {"failed": len(failed), "per_s": round(sum(o.fine for o in crowd) / took_s, 2)}
    if fine:
        for name, times in (("first", [o.first_s for o in fine]), ("whole", [o.whole_s for o in fine])):
            found |= {f"{name}_{of}_ms": value for of, value in report.spread_ms(times).items()}
        found |= same_work(fine)
    if failed:
        found["errors"] = {outcome.error: 1 for outcome in failed}
    return found
