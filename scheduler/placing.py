"""Taking turns at placing requests, and how long that may take.

Owns: how many requests a process places at once, and the limit for the steps of one together.
Never: places one (`dispatch`).

The limit is the broker's: a client must hear within seconds that it does not answer. Of hundreds that come at once each
would wait longer for this process to work for the others, which says nothing of the broker: so they take turns.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from infra.errors import BrokerDown

AT_ONCE = 16  # enough to keep broker and process busy
LIMIT_S = 3.2


@asynccontextmanager
async def in_time(until_s: float | None) -> AsyncIterator[None]:
    """A limit for several steps together, by the loop's clock: each has one of its own, but a client waits for all.

    None: their own are enough.

    Raises BrokerDown.
    """
    try:
        async with asyncio.timeout_at(until_s):
            yield
    except TimeoutError as error:
        raise BrokerDown("the broker does not answer in time", retry_after_s=5) from error
