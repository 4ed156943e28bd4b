"""How a worker ends: no new work, running answers may end, then it is over.

Owns: the drain that begins when Celery starts its warm shutdown, and its limit.
Never: starts anything.
"""

import threading
from collections.abc import Callable

import structlog

from workers.running import Running
from workers.serving import Serving

log = structlog.get_logger(__name__)
LAST_WORDS_S = 5.0


def drain_when_told(
    serving: Serving, running: Running, drain_s: float, announce: Callable[[], None]
) -> threading.Thread:
    """A started thread that waits for `serving.draining`, then for running answers, at most `drain_s`, then stops
    them and any that still begin; their clients get a proper error."""

    def wait() -> None:
        serving.draining.wait()
        running.change()
        announce()
        log.info("draining", worker=serving.name, running=len(running.jobs()), limit_s=drain_s)
        running.wait_idle(drain_s)
        running.stop_all()
        running.wait_idle(LAST_WORDS_S)

    thread = threading.Thread(target=wait, name="drain", daemon=True)
    thread.start()
    return thread
