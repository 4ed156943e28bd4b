"""The broker's atomic steps, called by the shortest way that redis-py has.

Owns: a connection of each thread's own, on which it runs scripts; beside the pool, and for as long as that: this is for
threads that last.
Never: a script's text, a key; the limits and retries of a connection (`redis_client`).

redis-py's own `Script` takes three layers, a pool with its checks and counts of its own to the same connection: more
than all the rest of a call, in the very moment in which an answer begins.
"""

import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from redis import ConnectionPool, Redis
from redis.exceptions import NoScriptError

from infra.redis_script import Argument, by_name, packed


class Step:
    """One script, for all threads. Calling it raises what a command of its client raises."""

    def __init__(self, client: Redis, text: str) -> None:
        self._script = client.register_script(text)
        self._pool = client.connection_pool

    def command(self, keys: Sequence[str], arguments: Sequence[Argument]) -> bytes:
        """The call as it goes to the broker."""
        return packed(by_name(self._script.sha, keys, arguments))

    def __call__(self, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        command = [self.command(keys, arguments)]
        connection = _own_connection(self._pool)
        if not connection.is_connected:
            connection.connect()  # with its own retries

        def ask() -> Any:
            connection.send_packed_command(command)
            return connection.read_response()

        try:
            return connection.retry.call_with_retry(ask, lambda _: connection.disconnect())
        except NoScriptError:  # a broker that was started again
            return self._script(keys, arguments)


class _Connections(threading.local):
    """Of this thread, by the pool whose settings they have; the pool closes them."""

    def __init__(self) -> None:
        self.by_pool: WeakKeyDictionary[ConnectionPool, Any] = WeakKeyDictionary()


_own = _Connections()


def _own_connection(pool: ConnectionPool) -> Any:  # redis-py types little of a connection
    connection = _own.by_pool.get(pool)
    if connection is None:
        connection = _own.by_pool[pool] = pool.make_connection()
    return connection
