"""Notices that Celery takes no tickets any more, though some wait and slots are free, and ends the worker then.

Owns: the judgement that the consumer is stuck, and what follows.
Never: looks at the engine (`watchdog`), takes a ticket; starts the worker again (whoever started it does).

Celery on Redis has a long history of consumers that are connected and take nothing, each for another reason, and its
ping answers meanwhile. What is missing then is a claim, so that is what is looked at.
"""

import faulthandler
import os
import signal
import sys
from collections.abc import Callable

import structlog

from infra.errors import BrokerDown
from workers.running import Running
from workers.serving import Serving

log = structlog.get_logger(__name__)
MOST_LOOKS = 15  # one a second; kombu itself finds a half-open connection after 11 s
SPARE_LOOKS = 30  # beyond a drain: to save what the slots hold, and to end

Count = Callable[[], int]
Signal = Callable[[int, int], None]


class Consuming:
    """Of one worker. `look` is called each second by one thread. Looks are counted, not seconds: a process that was
    frozen has not looked meanwhile."""

    def __init__(
        self, waiting: Count, running: Running, serving: Serving, drain_s: float, send: Signal = os.kill
    ) -> None:
        """`waiting` says how many tickets lie in the worker's queue, and raises BrokerDown; an end by SIGTERM may take
        `drain_s`."""
        self._waiting = waiting
        self._running = running
        self._serving = serving
        self._send = send
        self._taken = 0
        self._in_vain = 0
        self._ending = 0
        self._patience = drain_s + SPARE_LOOKS

    def look(self) -> None:
        """One look. After too many in vain the worker is told to end, as on SIGTERM, and killed if it does not."""
        if self._ending:
            self._ending += 1
            if self._ending > self._patience:
                self._send(os.getpid(), signal.SIGKILL)
            return
        self._in_vain = self._in_vain + 1 if self._stands() else 0
        if self._in_vain >= MOST_LOOKS:
            log.error("no_tickets_taken", worker=self._serving.name, looks=self._in_vain)
            faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)  # where it is stuck; no values in it
            self._ending = 1
            self._send(os.getpid(), signal.SIGTERM)

    def _stands(self) -> bool:
        """Tickets wait, slots are free, and none was taken since the last look."""
        before, self._taken = self._taken, self._running.taken
        if self._taken != before or self._running.in_work >= self._serving.usable_slots():
            return False
        try:
            return self._waiting() > 0
        except BrokerDown:
            return False
