"""Identical requests at once, with coalescing and without: generations, equal answers, times.

    python -m infra.bench.coalesce --model PATH

Owns: the command line, the order off, on, off, on, and the report. Exit code 1 when a request fails or answers differ.
Never: repeats a request.
"""

import asyncio
import secrets
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated

import httpx
import typer

from infra.bench import house as houses
from infra.bench import report
from infra.bench.bodies import Conversation, session_headers
from infra.bench.coalesce_clients import Answer, Clients
from infra.bench.command import JsonFile, Model, run
from infra.bench.house import House
from infra.bench.report import Figures
from infra.errors import EngineError

ORDER = (False, True, False, True)
BURSTS = 7


def main(
    model: Model = "demo",
    at_once: Annotated[int, typer.Option(min=2, help="Identical requests in one burst.")] = 50,
    clients: Annotated[int, typer.Option(min=1, help="Clients of the load.")] = 100,
    requests: Annotated[int, typer.Option(min=1, help="Identical requests of the load.")] = 500,
    body_bytes: Annotated[int, typer.Option(min=1_200, help="Size of a request.")] = 4_000,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 200,
    slots: Annotated[int, typer.Option(min=1, help="Slots of the engine.")] = 16,
    json_file: JsonFile = None,
) -> None:
    """Ask the same of Corral many times at once: of one that answers each by itself, and of one that coalesces."""
    command = report.command_line("infra.bench.coalesce")
    print(f"$ {command}")
    figures: Figures = {}
    for round_, coalesce in enumerate(ORDER):
        name = f"{'on' if coalesce else 'off'} {round_ // 2 + 1}"
        shape = {"slots": slots, "context_tokens": 8192, "threads": 1, "queue_limit": max(64, clients)}
        with houses.started(model, **shape, coalesce=coalesce) as house:
            talk = Conversation(secrets.token_hex(4), "same", body_bytes, max_tokens)
            figures[name] = asyncio.run(_measure(house, talk, at_once, clients, requests))
        report.show(f"coalesce {name}", [*figures[name].items()])
    report.save(json_file, command, figures)
    bad = [name for name, both in figures.items() if both["burst"]["different"] or both["load"]["different"]]
    if bad:
        raise EngineError(f"requests failed or their answers differ: {', '.join(bad)}; see `errors` there")


async def _measure(house: House, talk: Conversation, at_once: int, clients: int, requests: int) -> Figures:
    """Bursts, then a load of one request, from as many agents as there are clients."""
    heads = [session_headers(f"agent-{number}") for number in range(max(at_once, clients))]
    await _asked(house, talk, "warm", heads[:1])
    before = _coalesced(house)
    bursts = [await _asked(house, talk, f"burst {number}", heads[:at_once]) for number in range(BURSTS)]
    after = _coalesced(house)
    same = Clients(house.url, talk.messages_body(0, "load"))
    shares = [range(client, requests, clients) for client in range(clients)]

    async def client_asks(client: int) -> list[Answer]:
        return [await same.ask(await same.connect(), heads[client]) for _ in shares[client]]

    load = [answer for share in await asyncio.gather(*map(client_asks, range(clients))) for answer in share]
    return {
        "burst": {"generations": round(at_once - (after - before) / BURSTS, 2), **_bursts(bursts)},
        "load": {"generations": requests - _coalesced(house) + after, **load_figures(load)},
    }


async def _asked(house: House, talk: Conversation, ask: str, heads: Sequence[Mapping[str, str]]) -> list[Answer]:
    """One request from each of `heads`, all at one moment, on connections made before."""
    clients = Clients(house.url, talk.messages_body(0, ask))
    connections = [await clients.connect() for _ in heads]
    return await asyncio.gather(*map(clients.ask, connections, heads))


def _bursts(bursts: Sequence[Sequence[Answer]]) -> Figures:
    apart_ms = [1000 * (max(a.first_s for a in answers) - min(a.first_s for a in answers)) for answers in bursts]
    answers = [answer for burst in bursts for answer in burst]
    return {
        "different": sum(map(_different, bursts)),
        "first_bytes_apart_ms": {"median": round(median(apart_ms), 1), "least": round(min(apart_ms), 1)},
        "first_ms": report.spread_ms([answer.first_s - answer.asked_s for answer in answers]),
        "whole_ms": report.spread_ms([answer.last_s - answer.asked_s for answer in answers]),
    }


def load_figures(answers: Sequence[Answer]) -> Figures:
    """Times and rate are those of answers that came: a refusal is no fast one."""
    fine = [answer for answer in answers if answer.text is not None]
    found: Figures = {"different": _different(answers), "errors": [one.tail for one in answers if one.text is None][:3]}
    if fine:
        took_s = max(answer.last_s for answer in fine) - min(answer.asked_s for answer in fine)
        found["per_s"] = round(len(fine) / took_s, 1)
        found["whole_ms"] = report.spread_ms([answer.last_s - answer.asked_s for answer in fine])
    return found


def _different(answers: Sequence[Answer]) -> int:
    """Answers that failed or are not the most frequent one."""
    texts = Counter(answer.text for answer in answers if answer.text is not None)
    return len(answers) - max(texts.values(), default=0)


def _coalesced(house: House) -> int:
    answer = httpx.get(f"{house.url}/v1/status", timeout=5, trust_env=False)
    answer.raise_for_status()
    return int(answer.json()["coalesced"])


if __name__ == "__main__":
    sys.exit(run(main))
