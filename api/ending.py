"""Ending tasks for certain.

Owns: cancelling until it is heard.
Never: decides what to end.

On Python 3.11 `asyncio.wait_for`, with which redis-py sends, can swallow a cancellation that arrives as the awaited
thing finishes; the task then goes on as if nobody had asked.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

PATIENCE_S = 0.5


async def end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel `tasks` until all of them have ended. What they raise is theirs; it is not raised here."""
    living = [task for task in tasks if not task.done()]
    while living:
        for task in living:
            task.cancel()
        await asyncio.wait(living, timeout=PATIENCE_S)
        for task in living:
            if task.done() and not task.cancelled():
                task.exception()  # looked at, so that asyncio does not complain of it
        living = [task for task in living if not task.done()]
