"""Many streams that wait at once: the API's memory and what their jobs keep in the broker.

Owns: opening identified agents' streams on a worker whose engine stands still, and hanging up again.
Never: measures time.
"""

import asyncio
from contextlib import AsyncExitStack

from infra.bench.asking import MESSAGES, Target
from infra.bench.costs import Broker
from infra.bench.house import House, rss_bytes
from infra.bench.latency import Load
from infra.bench.report import Figures

SETTLE_S = 2.0
MEGABYTE = 2**20


async def waiting_streams(house: House, load: Load, count: int) -> Figures:
    """RSS of the API with `count` streams open, before them and after they were left."""
    target = Target(house.url, house.key, MESSAGES)
    broker = Broker(house.redis_url)
    figures: Figures = {"streams": count, "body_bytes": len(load.conversation("0").messages_body(0, "wait"))}
    figures["rss_before_mb"] = _megabytes(house)
    try:
        with house.engine.frozen():
            async with AsyncExitStack() as open_streams:
                opening = (_open(target, load, number, open_streams) for number in range(count))
                statuses = await asyncio.gather(*opening)
                await asyncio.sleep(SETTLE_S)
                figures["accepted"] = statuses.count(200)
                figures["rss_mb"] = _megabytes(house)
                figures["queued_job_bytes"] = broker.queued_job_bytes("w1")
        await asyncio.sleep(SETTLE_S)
        figures["rss_after_mb"] = _megabytes(house)
    finally:
        broker.close()
        await target.close()
    return figures


async def _open(target: Target, load: Load, number: int, open_streams: AsyncExitStack) -> int:
    talk = load.conversation(f"waiting{number}")
    body = talk.messages_body(0, f"wait {number}")
    return await open_streams.enter_async_context(target.opened(body, talk.headers))


def _megabytes(house: House) -> float:
    return round(rss_bytes(house.api_pid) / MEGABYTE, 1)
