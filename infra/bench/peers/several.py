"""Rows with several engines: coding agents, and an engine that is killed in the middle of an answer.

Owns: opening one side at a time before engines of its own, so that it has the machine to itself, and what is said of an
answer whose engine died.
Never: two sides at once.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from infra.bench import agents_house
from infra.bench import house as houses
from infra.bench.agents_bodies import Hearing
from infra.bench.agents_figures import figures, medians
from infra.bench.agents_house import Counter, EngineCommand
from infra.bench.agents_replay import Direct, Gateway, Replay
from infra.bench.agents_replay import Side as Asking
from infra.bench.agents_routing import LeastLoaded
from infra.bench.agents_session import Cast, Kind, Shape
from infra.bench.asking import MESSAGES, Outcome, Target
from infra.bench.bodies import session_headers
from infra.bench.house import Engine
from infra.bench.peers import sides
from infra.bench.peers.one_engine import Found, Told, request_body
from infra.bench.peers.sides import CORRAL, LLAMA_SERVER, PEER_ENGINE_FLAGS, Peer
from infra.bench.report import Figures
from infra.errors import StartError

KEY_VARIABLE = "LLAMA_API_KEY"
LONG_ANSWER_TOKENS = 2_000
KILL_AT = 1  # piece of text at which the engine is killed
TRIES = 3  # for an answer that was over before the engine could be killed
ONE_ENGINE_ONLY = "it knows one address a model and shares nothing out among engines"
WHOLE, OTHER_WORDS, BROKEN, TOO_LATE = "whole", "whole, other words", "broken", "over before the kill"


@dataclass(frozen=True, slots=True)
class Ground:
    """What is started for these rows: `workers` engines of `slots` slots."""

    model: str
    workers: int
    slots: int
    context_tokens: int
    folder: Path

    @property
    def settings(self) -> dict[str, Any]:
        # The demo model is assembled in the data folder, and the peers' engines load it from there.
        shape = {"slots": self.slots, "context_tokens": self.context_tokens, "threads": 1}
        return shape | {"data_dir": self.folder / "data"}


@dataclass(frozen=True, slots=True)
class Open:
    """One side before engines of its own."""

    name: str
    url: str
    key: str
    engines: tuple[Engine, ...]

    def asking(self) -> Asking:
        """Engines without anybody before them are shared out by the bench, to the one with the fewest requests."""
        return Direct(self.engines, LeastLoaded()) if self.name == LLAMA_SERVER else Gateway(self.url, self.key)


class Grounds:
    """Opens sides, one at a time."""

    def __init__(self, ground: Ground, chosen: Mapping[Peer, Path]) -> None:
        self.ground = ground
        self._peers = {peer.name: (peer, program) for peer, program in chosen.items()}
        self._commands: list[EngineCommand] = []

    @property
    def names(self) -> list[str]:
        return [CORRAL, *self._peers, LLAMA_SERVER]

    def spreads(self, name: str) -> bool:
        return name not in self._peers or self._peers[name][0].spreads

    @contextmanager
    def opened(self, name: str) -> Iterator[Open]:
        """Raises StartError when a part does not come up."""
        if name == CORRAL:
            with houses.started(self.ground.model, self.ground.workers, **self.ground.settings) as house:
                self._commands = _with_one_key(agents_house.commands_of(house))
                yield Open(name, house.url, house.key, house.engines)
            return
        with agents_house.engines(self.commands(), PEER_ENGINE_FLAGS) as engines:
            if name == LLAMA_SERVER:
                yield Open(name, engines[0].url, engines[0].key, engines)
                return
            peer, program = self._peers[name]
            with sides.opened(peer, program, engines, sides.folder_of(peer, self.ground.folder)) as side:
                yield Open(name, side.url, side.key, engines)

    def commands(self) -> list[EngineCommand]:
        """Commands of Corral's own engines; Corral is started for them once if it was not yet."""
        if not self._commands:
            with self.opened(CORRAL):
                pass
        return self._commands

    def sized(self, shape: Shape, tokens: int) -> Shape:
        """`shape` with a base of so many tokens, counted by the engine."""
        with agents_house.engines(self.commands()[:1], ()) as (engine,):
            return Counter(engine.url, engine.key, MESSAGES).sized(shape, tokens)


def _with_one_key(commands: Sequence[EngineCommand]) -> list[EngineCommand]:
    """Corral gives each engine a key of its own; a router knows one."""
    key = {KEY_VARIABLE: secrets.token_hex(16)}
    return [replace(command, environ={**command.environ, **key}) for command in commands]


def agents(grounds: Grounds, shape: Shape, seed: str, repeat: int, told: Told) -> Found:
    """The replay of coding agents, one side after another, `repeat` times: A B A B. Medians of the figures of
    `corral bench agents`; failed requests are summed."""
    runs: dict[str, list[Figures]] = {name: [] for name in grounds.names if grounds.spreads(name)}
    found: Found = {name: {"error": ONE_ENGINE_ONLY} for name in grounds.names if name not in runs}
    for number in range(repeat):
        for name in [name for name in runs if name not in found]:
            told(f"agents, round {number + 1} of {repeat}: {name}")
            try:
                with grounds.opened(name) as side:
                    cast = Cast(shape, seed, f"{seed} {number} {name}")
                    runs[name].append(asyncio.run(_replay(side.asking(), cast)))
            except StartError as error:
                found[name] = {"error": str(error)}
    return found | {name: _of_rounds(rounds) for name, rounds in runs.items() if name not in found}


def _of_rounds(rounds: Sequence[Figures]) -> Figures:
    figures: Figures = {name: spread[0] for name, spread in medians(rounds).items()}
    errors = [error for run in rounds for error in run.get("errors", ())]
    return figures | {"failed": sum(run["failed"] for run in rounds), "errors": errors, "rounds": list(rounds)}


def killed(grounds: Grounds, seed: str, told: Told) -> Found:
    """What becomes of an answer whose engine is killed in the middle of it."""
    found: Found = {}
    for name in grounds.names:
        told(f"engine killed in mid stream: {name}")
        try:
            with grounds.opened(name) as side:
                found[name] = asyncio.run(_killed(side, seed))
        except StartError as error:
            found[name] = {"error": str(error)}
    return found


def verdict(undisturbed: str, text: str, outcome: Outcome, hit: bool) -> str:
    """What to call an answer: it is whole when its end came, and not in the middle of what it should have said."""
    if not hit:
        return TOO_LATE
    cut = undisturbed.startswith(text) and text != undisturbed
    if outcome.error or not outcome.output_tokens or cut:
        return BROKEN
    return WHOLE if text == undisturbed else OTHER_WORDS


async def _replay(side: Asking, cast: Cast) -> Figures:
    try:
        turns, wall_s = await Replay(cast, side, lambda: None).run()
    finally:
        await side.close()
    return figures(turns, wall_s, {Kind.MAIN: 0})


async def _killed(side: Open, seed: str) -> Figures:
    target = Target(side.url, side.key, MESSAGES)
    try:
        for number in range(TRIES):
            found = await _killed_once(target, side.engines, f"{seed}-{number}")
            if found["answer"] != TOO_LATE:
                break
        return found
    finally:
        await target.close()


async def _killed_once(target: Target, engines: Sequence[Engine], seed: str) -> Figures:
    body, headers = request_body(f"{seed}: please say 500 words.", LONG_ANSWER_TOKENS), session_headers(seed)
    before, after = Hearing(), Hearing()
    killer = Killer(engines, after.chunk)
    await target.ask(body, headers, before.chunk)
    outcome = await target.ask(body, headers, killer.chunk)
    texts = before.reply.text, after.reply.text
    return {
        "answer": verdict(*texts, outcome, killer.hit),
        "words": [len(text.split()) for text in texts],
        "took_s": round(outcome.whole_s, 2),
        "said": outcome.error,
    }


class Killer:
    """Passes on the chunks of one stream and kills the engine that generates it after a few pieces of text."""

    def __init__(self, engines: Sequence[Engine], passed_on: Callable[[dict[str, Any]], None]) -> None:
        self.hit = False
        self._engines, self._passed_on, self._pieces = engines, passed_on, 0

    def chunk(self, chunk: dict[str, Any]) -> None:
        self._passed_on(chunk)
        self._pieces += chunk.get("type") == "content_block_delta"
        if self._pieces == KILL_AT and not self.hit:
            self._kill()

    def _kill(self) -> None:
        self._pieces += 1
        for engine in self._engines:
            if _generates(engine):
                os.kill(engine.pid, signal.SIGKILL)
                self.hit = True
                return


def _generates(engine: Engine) -> bool:
    """Asked while the stream is read, for then it cannot be over yet; a blocked loop hurts nobody here."""
    try:
        headers = {"authorization": f"Bearer {engine.key}"}
        slots = httpx.get(f"{engine.url}/slots", headers=headers, timeout=5, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return False
    return any(slot.get("is_processing") for slot in slots)
