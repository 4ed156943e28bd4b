"""Many fast streams at once, by command: does the relay keep up with its engine?

    python -m tests.relay [--streams 32] [--rate 200] [--tokens 1000]

Owns: streams through a whole Corral from a stand-in engine of a fixed speed, and what each lasted beside its ideal.
Never: runs in the gate: it fills two cores. Exit code 1 when an answer is not whole or a stream fell behind.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from time import perf_counter

import httpx
import psutil

from infra.bench.report import percentile
from tests.acceptance.conftest import running
from tests.doubles.cluster import Cluster

BEHIND = 1.1  # of the ideal: a stream that takes longer from its first word to its last has fallen behind
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Stream:
    """Seconds to its first piece, from that to the last, and of the longest silence; how many pieces came, and whether
    all words did."""

    first_s: float
    lasted_s: float
    longest_gap_s: float
    pieces: int
    whole: bool


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.relay", description="Many fast streams at once.")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rate", type=float, default=200, help="tokens per second of each")
    parser.add_argument("--tokens", type=int, default=1000, help="of each answer")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="corral-relay-", ignore_cleanup_errors=True) as name:
        speed = {"decode_tokens_per_s": options.rate}
        with running(Path(name) / "0", workers=1, slots=options.streams, standin=speed) as cluster:
            before = _processor_s(cluster)
            streams = asyncio.run(_all(cluster.url, options.streams, options.tokens))
            used = {part: after_s - before[part] for part, after_s in _processor_s(cluster).items()}
    return _told(streams, options.tokens / options.rate, used)


async def _all(url: str, count: int, tokens: int) -> list[Stream]:
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S, limits=limits, trust_env=False) as client:
        return await asyncio.gather(*(_one(client, number, tokens) for number in range(count)))


async def _one(client: httpx.AsyncClient, number: int, tokens: int) -> Stream:
    message = {"role": "user", "content": f"say {tokens} words"}
    body = {"model": "m", "max_tokens": tokens + 1, "stream": True, "messages": [message]}
    headers = {"x-claude-code-session-id": f"stream-{number}"}
    began_s, times, text = perf_counter(), [], ""
    async with client.stream("POST", "/v1/messages", json=body, headers=headers) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and '"text_delta"' in line:
                times.append(perf_counter())
                text += json.loads(line[6:])["delta"]["text"]
    if len(times) < 2:
        return Stream(inf, inf, inf, len(times), whole=False)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return Stream(times[0] - began_s, times[-1] - times[0], max(gaps), len(times), text.split() == _words(tokens))


def _words(tokens: int) -> list[str]:
    return [f"w{number}" for number in range(1, tokens + 1)]


def _processor_s(cluster: Cluster) -> dict[str, float]:
    worker = psutil.Process(cluster.workers["w1"].process.pid)
    parts = {"api": psutil.Process(cluster.apis[0].process.pid), "worker": worker, "engine": worker.children()[0]}
    times = {name: process.cpu_times() for name, process in parts.items()}
    return {name: time.user + time.system for name, time in times.items()}


def _told(streams: list[Stream], ideal_s: float, used: dict[str, float]) -> int:
    behind = sum(stream.lasted_s > BEHIND * ideal_s for stream in streams)
    torn = sum(not stream.whole for stream in streams)
    lasted = sorted(stream.lasted_s for stream in streams)
    gaps = [stream.longest_gap_s for stream in streams]
    print(f"{len(streams)} streams, ideal {ideal_s:.2f} s from first to last word")
    print(f"lasted p50 {percentile(lasted, 0.5):.2f} s, longest {lasted[-1]:.2f} s; {behind} fell behind, {torn} torn")
    print(f"first word p50 {percentile([stream.first_s for stream in streams], 0.5):.2f} s")
    print(f"longest silence p50 {1000 * percentile(gaps, 0.5):.0f} ms, longest {1000 * max(gaps):.0f} ms")
    pieces = max(1, sum(stream.pieces for stream in streams))
    each = ", ".join(f"{part} {used_s:.2f} s ({used_s / pieces * 1e6:.0f} us)" for part, used_s in used.items())
    print(f"processor time (of each of {pieces} pieces): {each}")
    return 1 if behind or torn else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
