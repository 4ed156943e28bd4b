"""Processor time of a request and of a relayed batch of deltas, for each part of Corral.

Owns: reading the parts' own clocks around a load that the bench makes, their idle share taken off.
Never: wall time, which others on the machine change.
"""

import asyncio
from time import perf_counter
from typing import NamedTuple

import psutil
import redis

from infra.bench.bodies import Conversation
from infra.bench.costs import Broker
from infra.bench.house import House
from infra.bench.latency import Load, Sides, fine
from infra.bench.report import Figures

REQUESTS = 60
SMALL_BYTES = 2_000  # of the bodies of long answers, so that only the answer counts
LEAST_BATCHES = 100  # with fewer the ticks of the clocks would decide
IDLE_S = 3.0


class Used(NamedTuple):
    """What REQUESTS requests took: seconds by part, writes to the broker's streams, tokens of output."""

    seconds: dict[str, float]
    writes: int
    tokens: int


class Parts:
    """The processes of a Corral on this machine: API, broker, its one worker and that worker's engine."""

    def __init__(self, house: House) -> None:
        with redis.Redis.from_url(house.redis_url) as broker:
            broker_pid = int(broker.info("server")["process_id"])
        engine = psutil.Process(house.engine.pid)
        worker = engine.parent()
        pids = {"api": house.api_pid, "broker": broker_pid, "worker": worker.pid if worker else 0}
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()} | {"engine": engine}

    def used_s(self) -> dict[str, float]:
        """Seconds of processor time since each began."""
        times = {name: process.cpu_times() for name, process in self._processes.items()}
        return {name: time.user + time.system for name, time in times.items()}


async def processor_time(sides: Sides, long_tokens: int) -> Figures:
    """Milliseconds a request with one token, and microseconds a batch of deltas more, each by part.

    Batches are counted where they are written, in the broker; a model that says too little gives no figure for them.
    Raises EngineError when a request fails.
    """
    load, parts, broker = sides.load, Parts(sides.house), Broker(sides.house.redis_url)
    try:
        idle = await _idle_share(parts)

        async def used(size_bytes: int, max_tokens: int) -> Used:
            talk = Load(load.seed, size_bytes, max_tokens, load.stop).conversation(f"processor {size_bytes}")
            return await _measured(sides, parts, broker, talk, idle)

        request = await used(load.size_bytes, 1)
        short = await used(SMALL_BYTES, 1)
        long = await used(SMALL_BYTES, long_tokens)
    finally:
        broker.close()
    figures: Figures = {"request_ms": {name: round(of / REQUESTS * 1000, 2) for name, of in request.seconds.items()}}
    figures["batches"], tokens = long.writes - short.writes, long.tokens - short.tokens
    if figures["batches"] >= LEAST_BATCHES:
        more = {name: of - short.seconds[name] for name, of in long.seconds.items() if name != "engine"}
        figures["batch_us"] = {name: round(of / figures["batches"] * 1e6) for name, of in more.items()}
        figures["tokens_a_batch"] = round(tokens / figures["batches"], 1)
    return figures


async def _idle_share(parts: Parts) -> dict[str, float]:
    before = parts.used_s()
    await asyncio.sleep(IDLE_S)
    return {name: (used_s - before[name]) / IDLE_S for name, used_s in parts.used_s().items()}


async def _measured(sides: Sides, parts: Parts, broker: Broker, talk: Conversation, idle: dict[str, float]) -> Used:
    await sides.warm(talk)
    tokens = 0
    before, writes, began_s = parts.used_s(), broker.calls()["xadd"], perf_counter()
    for number in range(REQUESTS):
        outcome = fine(await sides.ask_gateway(talk, 0, f"processor {talk.max_tokens} {number:04}"))
        tokens += outcome.output_tokens
    took_s = perf_counter() - began_s
    used = {name: used_s - before[name] - idle[name] * took_s for name, used_s in parts.used_s().items()}
    return Used(used, broker.calls()["xadd"] - writes, tokens)
