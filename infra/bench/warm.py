"""What a new agent waits for its first token: on a base that nobody used, and on one that was used or warmed up before.

    corral bench warm --start --model PATH --base 20000      starts all it needs, ends it again
    corral bench warm --url URL --base 20000                 asks whoever runs there

Owns: the command line, the order of the arms (A B C A B C), and the ratios.
Never: starts a part by itself (`house`). Exit code 1 when a request fails.

`cold` is the first agent on a base; `elsewhere` another new agent on it, on the worker that never saw it; `named` the
first agent on a base of the setting `warm`. A cold answer also waits until its base is saved for the others: the time
of its prefill alone stands beside it, and both ratios are told. With --url the arms are those of `warm_url`: what is
prepared there is not for the bench to say. Each base is new text.
"""

import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from infra.bench import agents_bodies as bodies
from infra.bench import house as houses
from infra.bench import report, warm_url
from infra.bench.address import address
from infra.bench.agents_house import Counter
from infra.bench.agents_session import Cast, Kind, Shape
from infra.bench.asking import MESSAGES, Outcome, Target
from infra.bench.command import DEFAULT_URL, JsonFile, StartedModel, Url, run
from infra.bench.house import House
from infra.bench.latency import fine
from infra.bench.report import Figures
from infra.errors import EngineError

WORKERS = 2
ARMS = ("cold", "elsewhere", "named")
MOST_AGENTS = 24  # one of so many lands on the other worker
ROOM_TOKENS = 4096
WARM_LIMIT_S = 1800.0
SETTLE_S = 3.0  # a saved file is read for its checksum before other workers find it
POLL_S = 0.5


def main(
    start: Annotated[bool, typer.Option("--start", help="Start Corral for this run.")] = False,
    model: StartedModel = "demo",
    url: Url = DEFAULT_URL,
    key: Annotated[str, typer.Option(help="Its key, if it wants one.")] = "",
    base: Annotated[int, typer.Option(min=1, help="Tokens of system and tools.")] = 20_000,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds over all arms.")] = 3,
    slots: Annotated[int, typer.Option(min=1, help="With --start: slots of an engine.")] = 2,
    json_file: JsonFile = None,
) -> None:
    """Compare first tokens on a cold base with those on a warm one."""
    command, run_id = report.command_line("infra.bench.warm"), secrets.token_hex(4)
    print(f"$ {command}\nrun {run_id}")
    if start:
        figures = _started(model, base, repeat, slots, run_id)
    else:
        figures = warm_url.measured(address(url, key), base, repeat, run_id)
    report.save(json_file, command, {"run": run_id, **figures})


def _started(model: str, base: int, repeat: int, slots: int, run_id: str) -> Figures:
    own = {"slots": slots, "context_tokens": base + ROOM_TOKENS, "threads": 1}
    with houses.started(model, **own) as house:
        shape = Counter(house.url, house.key, MESSAGES).sized(Shape(MOST_AGENTS, 1, 0, (60, 60), 0, 0, 0, 8), base)
    casts = {arm: [Cast(shape, run_id, f"{run_id}-{arm}-{number}") for number in range(repeat)] for arm in ARMS}
    with tempfile.TemporaryDirectory(prefix="corral-bench-warm-") as folder:
        files = [_recorded(cast, Path(folder) / f"{number}.json") for number, cast in enumerate(casts["named"])]
        with houses.started(model, WORKERS, warm=files, **own) as house:
            warmed = _wait_warm(house, WORKERS * repeat)
            runs = asyncio.run(_rounds(house, casts["cold"], casts["named"]))
            figures = _figures(runs, _prefills_s(house), warmed)
    report.show(f"First token of a new agent, base {base} tokens, {WORKERS} workers", [*figures.items()])
    return figures


async def _rounds(house: House, cold: Sequence[Cast], named: Sequence[Cast]) -> dict[str, list[Outcome]]:
    """The outcomes of each arm. Raises EngineError when a request fails."""
    target = Target(house.url, house.key, MESSAGES)
    runs: dict[str, list[Outcome]] = {arm: [] for arm in ARMS}
    try:
        for unused, warm in zip(cold, named, strict=True):
            runs["cold"].append(first := await _ask(target, unused, 0))
            await asyncio.sleep(SETTLE_S)
            runs["elsewhere"].append(await _on_another(target, unused, first.worker))
            runs["named"].append(await _ask(target, warm, 0))
    finally:
        await target.close()
    return runs


async def _on_another(target: Target, cast: Cast, worker: str) -> Outcome:
    """A new agent of the same base on another worker: new agents come until one is placed there."""
    for agent in range(1, MOST_AGENTS):
        outcome = await _ask(target, cast, agent)
        if outcome.worker != worker:
            return outcome
    raise EngineError(f"{MOST_AGENTS} agents were all placed on worker {worker}")


async def _ask(target: Target, cast: Cast, agent: int) -> Outcome:
    talk = cast.talk(Kind.MAIN, agent)
    talk.say(cast.next_words(talk, 0))
    return fine(await target.ask(bodies.messages_body(talk), bodies.headers(talk)))


def _recorded(cast: Cast, path: Path) -> Path:
    """A file for `warm`: a request of an agent that is not among those asked for."""
    talk = cast.talk(Kind.MAIN, MOST_AGENTS)
    talk.say("go")
    path.write_bytes(bodies.messages_body(talk))
    return path


def _wait_warm(house: House, count: int) -> list[float]:
    """Seconds of each warm-up, once all are done. Raises EngineError when one fails or all take too long."""
    ends_s = time.monotonic() + WARM_LIMIT_S
    while time.monotonic() < ends_s:
        lines = list(_lines(house))
        if any(line["event"] == "warm_up_failed" for line in lines):
            raise EngineError("a warm-up failed; the API's log says which")
        done = [float(line["seconds"]) for line in lines if line["event"] == "warmed"]
        if len(done) >= count:
            return done
        time.sleep(POLL_S)
    raise EngineError(f"not all bases were warm within {WARM_LIMIT_S:.0f} s")


def _prefills_s(house: House) -> list[float]:
    """Of each answer on a base that nobody had: how long the engine read its prompt."""
    answers = [line for line in _lines(house) if line["event"] == "request" and line.get("outcome") == "done"]
    return [line["prefill_ms"] / 1000 for line in answers if line["cached_tokens"] < line["prompt_tokens"] / 2]


def _lines(house: House) -> Iterator[dict[str, Any]]:
    assert house.logs is not None  # noqa: S101  # the bench started it
    for file in sorted(house.logs.glob("*.log")):
        for text in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if text.startswith("{"):
                yield json.loads(text)


def _figures(runs: dict[str, list[Outcome]], prefills_s: Sequence[float], warmed_s: Sequence[float]) -> Figures:
    firsts = {arm: [round(outcome.first_s, 3) for outcome in found] for arm, found in runs.items()}
    middle = {arm: median(found) for arm, found in firsts.items()}
    prefill_s = median(prefills_s)
    figures: Figures = {f"{arm}_first_s": {"median": middle[arm], "all": str(firsts[arm])} for arm in ARMS}
    figures |= {
        f"{arm}_tokens": str([f"{outcome.cached_tokens} of {outcome.prompt_tokens}" for outcome in runs[arm]])
        for arm in ARMS
    }
    figures["cold_prefill_alone_s"] = round(prefill_s, 3)
    for arm in ARMS[1:]:
        figures[f"{arm}_to_cold"] = round(middle[arm] / middle["cold"], 3)
        figures[f"{arm}_to_cold_prefill_alone"] = round(middle[arm] / prefill_s, 3)
    return figures | {"warm_ups_s": str(list(warmed_s))}


if __name__ == "__main__":
    sys.exit(run(main))
