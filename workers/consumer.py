"""Celery's consumer, which sends the events of its tasks together and is soon back at a broker that was away.

Owns: when the events that Flower listens to are sent, where a ticket is acknowledged, and the pauses until a lost
broker is tried again.
Never: a ticket, a job.

Stock Celery sends each event by itself, three for a task: a quarter of what a worker computes, in the very moment in
which an answer begins. Who looks at Flower does not see a quarter of a second.
"""

import threading
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from celery.events.dispatcher import EventDispatcher
from celery.worker.consumer import Consumer

from infra.celery_app import RECONNECT

EVENTS_S = 0.25
LOST_S = 2.0  # a timer that has not come by then was taken back by Celery, which does so when its connection breaks
MOST_EVENTS = 1000  # beyond, whichever thread made the last one sends them all; Celery's own bound is 24


class Dispatcher(EventDispatcher):  # type: ignore[misc]  # celery is untyped
    """Sends events once; one that cannot be sent is lost, for Flower alone.

    Stock Celery keeps them all, and tries a worker's own sign of life for ever: while its network carries nothing, the
    worker hears no signal and does not look whether its connection is half open.
    """

    def _publish(self, event: Any, producer: Any, routing_key: str, **_: Any) -> None:
        super()._publish(event, producer, routing_key)
        self._outbound_buffer.clear()


class GatheringConsumer(Consumer):  # type: ignore[misc]  # celery is untyped
    """The consumer that `workers.app` names to Celery."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._lock = threading.Lock()
        self._until_s = 0.0

    def stop(self) -> None:
        """Celery's own; what has gathered is sent first."""
        self._flush_events()
        super().stop()

    def ensure_connected(self, conn: Any) -> Any:
        """Celery's own, which has no setting for its pauses."""
        conn.ensure_connection = partial(conn.ensure_connection, **RECONNECT)
        return super().ensure_connected(conn)

    def call_soon_ack(self, acknowledge: Callable[..., object], *given: Any, **named: Any) -> None:
        """At once, in the task's own thread: without `ack_emulation` it is a note in a set, which kombu allows any
        thread to make. Celery's own wakes the hub for it, which then works beside the task that is just beginning."""
        acknowledge(*given, **named)

    def on_send_event_buffered(self) -> None:
        """An event was made; in any thread."""
        with self._lock:
            if monotonic() < self._until_s:
                return
            self._until_s = monotonic() + LOST_S
        self.hub.call_soon(self._send_later)  # a timer may be set in the hub's own thread only

    def _send_later(self) -> None:
        self.hub.call_later(EVENTS_S, self._send)

    def _send(self) -> None:
        with self._lock:
            self._until_s = 0.0
        if self.event_dispatcher:
            self.event_dispatcher.buffer_limit = MOST_EVENTS
        self._flush_events()
