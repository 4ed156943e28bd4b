"""Many clients at once: does every request succeed at its first attempt, and how long does it take.

    corral bench load --start --model PATH      starts all it needs, ends it again; its engine is loaded alone too
    corral bench load --url URL                 loads whoever runs there
    corral bench load --compare URL URL         each in turn, A B A B

Owns: the command line and the report. Exit code 1 when a request fails.
Never: repeats a request.
"""

import asyncio
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer

from infra.bench import compare, report
from infra.bench import house as houses
from infra.bench.address import Address, address, check_answers, compared
from infra.bench.asking import CHAT, MESSAGES, Outcome, Target, same_work, side_by_side
from infra.bench.bodies import Conversation
from infra.bench.command import DEFAULT_URL, Compare, JsonFile, More, SharedKey, Start, StartedModel, Url, run
from infra.bench.latency import Load
from infra.bench.progress import Told
from infra.bench.report import Figures

ANY_SLOT = -1  # with more clients than slots an engine itself is to choose
ROWS = {
    "whole_mean_ms": "whole answer, mean, ms",
    "whole_p50_ms": "whole answer, p50, ms",
    "whole_p95_ms": "whole answer, p95, ms",
    "whole_p99_ms": "whole answer, p99, ms",
    "first_p50_ms": "first token, p50, ms",
    "first_p95_ms": "first token, p95, ms",
    "per_s": "requests a second",
    "prompt_tokens": "prompt tokens, mean",
    "cached_tokens": "  of these cached",
    "output_tokens": "output tokens, mean",
    "first_attempt_pct": "answered at the first attempt, %",
}


def main(
    more: More = None,
    start: Start = False,
    model: StartedModel = "demo",
    url: Url = DEFAULT_URL,
    compare_urls: Compare = None,
    key: SharedKey = "",
    repeat: Annotated[int, typer.Option(min=1, help="Rounds over all addresses.")] = 2,
    clients: Annotated[int, typer.Option(min=1, help="Clients that ask at once.")] = 100,
    requests: Annotated[int, typer.Option(min=1, help="Requests of a round, each different.")] = 500,
    body_bytes: Annotated[int, typer.Option(min=1_200, help="Size of a request.")] = 4_000,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 32,
    slots: Annotated[int, typer.Option(min=1, help="With --start: slots of the engine.")] = 16,
    context: Annotated[int, typer.Option(min=1, help="With --start: window of a slot.")] = 49_152,
    json_file: JsonFile = None,
) -> None:
    """Let many clients ask at once."""
    command, seed = report.command_line("infra.bench.load"), secrets.token_hex(4)
    asked = compared(compare_urls, more, key, start=start) or (address(url, key),)
    print(f"$ {command}")
    # Clients that find no slot wait in the line, so it must hold them all.
    shape = {"slots": slots, "context_tokens": context, "threads": 1, "queue_limit": max(64, clients)}
    with _started(model, shape) if start else _running(asked) as there:
        work = Load(seed, body_bytes, max_tokens)
        arms = {one.name: partial(measure, one, work, clients, requests) for one in there}
        runs = asyncio.run(compare.in_turn(arms, repeat, requests))
    compare.show(f"{requests} requests from {clients} clients, {body_bytes} bytes each", runs, ROWS)
    report.save(json_file, command, compare.as_json(runs))
    compare.judge(runs)


@contextmanager
def _started(model: str, shape: dict[str, int]) -> Iterator[tuple[Address, ...]]:
    with houses.started(model, **shape) as house:
        print(f"Corral with {houses.settings_line(house)}")
        yield Address("corral", house.url, house.key), Address("engine", house.engine.url, house.engine.key, CHAT)


@contextmanager
def _running(asked: Sequence[Address]) -> Iterator[Sequence[Address]]:
    for one in asked:
        check_answers(one.url)
    yield asked


async def measure(asked: Address, load: Load, clients: int, requests: int, number: int, told: Told) -> Figures:
    """One round on one address: `requests` requests that nobody sent before, from `clients` clients.

    Each address has texts of its own, so that none finds in an engine's cache what another one has paid for.
    """
    load = load.of_arm(asked.name)
    talks = [load.conversation(f"client{client}") for client in range(clients)]
    target = asked.target()

    async def ask(client: int, request: int) -> Outcome:
        outcome = await _ask(target, asked.path, talks[client], f"{number} {request:06}")
        told()
        return outcome

    try:
        # Unmeasured: what all requests begin with is in a cache then, in the first round as in the last.
        await _ask(target, asked.path, load.conversation("warm"), f"{number} begin")
        return figures(*await side_by_side(ask, clients, requests))
    finally:
        await target.close()


async def _ask(target: Target, path: str, talk: Conversation, words: str) -> Outcome:
    if path == MESSAGES:
        return await target.ask(talk.messages_body(0, words), talk.headers)
    return await target.ask(talk.chat_body(0, words, ANY_SLOT), {"content-type": "application/json"})


def figures(outcomes: Sequence[Outcome], took_s: float) -> Figures:
    """Times in ms and requests a second of those that succeeded: a refusal is no fast answer. The most frequent errors,
    if there are any."""
    fine = [outcome for outcome in outcomes if outcome.fine]
    found: Figures = {
        "requests": len(outcomes),
        "failed": len(outcomes) - len(fine),
        "first_attempt_pct": round(100 * len(fine) / len(outcomes), 2),
        "per_s": round(len(fine) / took_s, 2),
    }
    if fine:
        for name, times in (("whole", [o.whole_s for o in fine]), ("first", [o.first_s for o in fine])):
            found |= {f"{name}_{of}_ms": value for of, value in report.spread_ms(times).items()}
        found |= same_work(fine)
    if len(fine) < len(outcomes):
        found["errors"] = dict(Counter(outcome.error for outcome in outcomes if not outcome.fine).most_common(5))
    return found


if __name__ == "__main__":
    sys.exit(run(main))
