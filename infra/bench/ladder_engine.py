"""One engine of the ladder: its command with some flags in place of others, its start, and its speeds.

Owns: what is asked of it and how speeds are read from the engine's own timings.
Never: decides what is kept, or keeps an engine alive after it was measured.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import orjson
import psutil

from infra.bench import agents_house
from infra.bench.agents_house import EngineCommand
from infra.bench.asking import CHAT, Target
from infra.bench.bodies import words
from infra.bench.house import Engine
from infra.bench.ladder import Flags, Measured, replaced
from infra.errors import EngineError

REPEATED_WORDS = 60  # of the text that is to be repeated, which is what editing a file is like

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """What an engine is asked at each start: `times` prompts of about so many words, and answers of so many tokens, by
    one client and by one for each slot."""

    prompt_words: int
    answer_tokens: int
    slots: int
    times: int


def measured(command: EngineCommand, flags: Flags, work: Work, told: Callable[[str], None]) -> Measured:
    """Start the engine, measure it, end it. Raises StartError when it does not come up with these flags, and
    EngineError when it does not answer."""
    told("starting")
    changed = replace(command, arguments=tuple(replaced(command.arguments, flags)))
    with agents_house.engines([changed], ()) as (engine,):
        return asyncio.run(_measure(engine, work, told))


async def _measure(engine: Engine, work: Work, told: Callable[[str], None]) -> Measured:
    target = Target(engine.url, engine.key, CHAT)
    try:
        await _ask(target, "say hello", 4)  # the first request of an engine is slower than all others
        told("prefill")
        prefills = [await _ask(target, words(secrets.token_hex(4), work.prompt_words), 1) for _ in range(work.times)]
        told("decode, one slot")
        alone = [await _ask(target, _to_repeat(), work.answer_tokens) for _ in range(work.times)]
        told(f"decode, {work.slots} slots")
        together: list[float] = []
        for _ in range(work.times):
            asked = (_ask(target, _to_repeat(), work.answer_tokens) for _ in range(work.slots))
            together.append(sum(timing["predicted_per_second"] for timing in await asyncio.gather(*asked)))
    finally:
        await target.close()
    return Measured(
        prefill_per_s=median(timing["prompt_per_second"] for timing in prefills),
        decode_per_s=median(timing["predicted_per_second"] for timing in alone),
        decode_all_per_s=median(together),
        memory_bytes=psutil.Process(engine.pid).memory_info().rss,
        accepted=_accepted(alone),
    )


async def _ask(target: Target, text: str, answer_tokens: int) -> Json:
    """The engine's timings of one answer, which goes on to its limit. Raises EngineError."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": answer_tokens, "stream": True}
    body |= {"temperature": 0, "ignore_eos": True, "cache_prompt": False, "stream_options": {"include_usage": True}}
    timings: Json = {}

    def hear(chunk: Json) -> None:
        timings.update(chunk.get("timings") or {})

    outcome = await target.ask(orjson.dumps(body), {"content-type": "application/json"}, hear)
    if outcome.error or not timings:
        raise EngineError(f"an engine of the ladder did not answer as asked: {outcome.error or 'it tells no timings'}")
    return timings


def _to_repeat() -> str:
    text = words(secrets.token_hex(4), REPEATED_WORDS)
    return f"Repeat this text word for word, again and again: {text}. {text}."


def _accepted(timings: Sequence[Json]) -> float | None:
    """None when nothing was guessed."""
    shares = [one["draft_n_accepted"] / one["draft_n"] for one in timings if one.get("draft_n")]
    return round(fmean(shares), 2) if shares else None
