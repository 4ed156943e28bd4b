"""The worker's sign of life.

Owns: the thread that renews the lease and the running jobs, whatever the engine does.
Never: decides who is dead (`scheduler.recovery`).
"""

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from typing import Self

import structlog

from infra.errors import BrokerDown, StartError
from scheduler.claims import Claims
from workers.running import Running
from workers.serving import Serving

log = structlog.get_logger(__name__)


class Heartbeat:
    """Beats inside its block. Leaving gives the lease back."""

    def __init__(
        self, claims: Claims, serving: Serving, running: Running, incarnation: str, renew_s: float, lifetime_s: float
    ) -> None:
        self._claims = claims
        self._serving = serving
        self._running = running
        self._incarnation = incarnation
        self._renew_s = renew_s
        self._lifetime_ms = int(lifetime_s * 1000)
        self._started_ms = time.time_ns() // 1_000_000
        self._stopping = threading.Event()
        self._now = threading.Event()
        self.on_drain: Callable[[int | None], None] = _nobody
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        """Take the name. Raises StartError while another living worker has it, BrokerDown without a broker."""
        deadline_s = time.monotonic() + self._lifetime_ms / 1000 + 1
        while not self._beat():
            if time.monotonic() > deadline_s:
                raise StartError("worker", f"a worker named {self._serving.name} is running; choose another --name")
            self._stopping.wait(0.2)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopping.set()
        self._now.set()
        self._thread.join(timeout=10)
        try:
            self._claims.leave(told=kind is None or issubclass(kind, SystemExit))
        except BrokerDown:
            log.warning("lease_not_given_back", worker=self._serving.name)

    def soon(self) -> None:
        """Something changed that others should hear of at once."""
        self._now.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._now.wait(self._renew_s)
            self._now.clear()
            try:
                if not self._stopping.is_set() and not self._beat():
                    log.error("name_taken", worker=self._serving.name)
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
            except BrokerDown as error:
                log.warning("beat_failed", reason=error.message)
            except Exception:
                log.exception("beat_failed")  # a worker whose heart stops would be buried alive

    def _beat(self) -> bool:
        info = self._serving.info(self._incarnation, self._started_ms).model_copy(update={"pid": os.getpid()})
        held = self._running.jobs()
        states = self._claims.beat(info, self._lifetime_ms, list(held))
        if states is None:
            return False
        self.on_drain(self._claims.drain_left_ms)
        for job_id, state in states.items():
            if state in ("cancelled", ""):  # the control stream may have lost the word
                self._running.cancel(job_id, held[job_id])  # not another attempt that has begun meanwhile
        return True


def _nobody(_left_ms: int | None) -> None:
    """Nobody listens yet."""


def new_incarnation() -> str:
    return uuid.uuid4().hex
