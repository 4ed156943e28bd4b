"""A question to the broker whose answer another thread reads, a little later.

Owns: the one connection that such questions go over, and that only one is under way at a time.
Never: what is asked; waits for the broker in the thread that asks.

Celery's own thread takes a ticket and hands it to another. Before that one has begun, the broker has the answer ready.
"""

import threading
from contextlib import suppress
from typing import Any

from redis import Redis, RedisError


class Ahead:
    """For questions that may be put twice: whoever is told no, or gets no answer, puts them in the usual way."""

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._connection: Any = None
        self._under_way = threading.Lock()

    def send(self, command: bytes) -> bool:
        """Whether the packed `command` is on its way; False while another one is, or without a connection yet."""
        if not self._under_way.acquire(blocking=False):
            return False
        with suppress(RedisError):
            if self._connection is not None and self._connection.is_connected:
                self._connection.send_packed_command([command], check_health=False)
                return True
        self._under_way.release()
        return False

    def answer(self) -> Any:
        """The answer to what was sent; waits as long as one command may, and is not tried again.

        Raises redis.RedisError, OSError.
        """
        try:
            return self._connection.read_response()
        finally:
            self._under_way.release()

    def drop(self) -> None:
        """Nobody wants the answer to what was sent."""
        with suppress(RedisError, OSError):
            self._connection.disconnect()
        self._under_way.release()

    def connect(self) -> None:
        """Have a connection for the next question, in a thread that may wait. Trouble is left to whoever asks."""
        if self._connection is not None and self._connection.is_connected:
            return
        if not self._under_way.acquire(blocking=False):
            return
        try:
            with suppress(RedisError, OSError):
                self._connection = self._connection or self._pool.make_connection()
                self._connection.connect()
        finally:
            self._under_way.release()
