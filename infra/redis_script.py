"""What the event loop asks the broker for with little in between: a script, or any command.

Owns: how such a command is sent, and the few connections that are kept for it.
Never: a script's text, a key; how long a limit is, tries and pools (`redis_client`): all hold as for any command.

redis-py's own passes eight layers: with seventy arguments it takes twice the time of what is done here. Its
pool looks at a connection each time before it gives it out, which takes as long again: a few are kept here. On Python
3.11 it limits the time of a write by a task of its own, which writes only when its turn comes: here one limit of the
same length holds for question and answer together.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import hiredis
from redis.asyncio import Connection, Redis
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as AnswerTimeout

KEPT_CONNECTIONS = 4
Argument = str | int | float | bytes


class Line:
    """A short way to the broker for any command; what it answers is given as the protocol has it."""

    def __init__(self, redis: Redis) -> None:
        self._pool: Any = redis.connection_pool
        self._kept: list[Any] = []

    async def ask(self, arguments: Sequence[Argument]) -> Any:
        """Answers and fails as a command of redis-py does."""
        command = packed(arguments)
        connection = self._kept.pop() if self._kept else await self._pool.get_connection()
        try:
            return await connection.retry.call_with_retry(
                partial(_ask, connection, command), lambda _: connection.disconnect()
            )
        finally:
            if len(self._kept) < KEPT_CONNECTIONS:
                self._kept.append(connection)
            else:
                await self._pool.release(connection)


class Script:
    """One script. Called as what `register_script` of redis-py gives, it answers and fails as that does."""

    def __init__(self, redis: Redis, text: str) -> None:
        self._script = redis.register_script(text)
        self._line = Line(redis)

    async def __call__(self, names: Sequence[str], arguments: Sequence[Argument]) -> Any:
        try:
            return await self._line.ask(by_name(self._script.sha, names, arguments))
        except NoScriptError:  # a broker that has begun anew
            return await self._script(names, arguments)


def by_name(sha: str, names: Sequence[str], arguments: Sequence[Argument]) -> list[Argument]:
    """The command that calls a script which the broker knows."""
    return ["EVALSHA", sha, len(names), *names, *arguments]


def packed(arguments: Sequence[Argument]) -> bytes:
    """A command as it goes to the broker."""
    command: Any = tuple(arguments)  # hiredis declares a tuple of one
    text: bytes = hiredis.pack_command(command)
    return text


async def _ask(connection: Connection, command: bytes) -> Any:
    if not connection.is_connected:  # each step of that has the limit for itself, as everywhere
        await connection.connect_check_health(check_health=False)
    limit_s, connection.socket_timeout = connection.socket_timeout, None
    try:
        async with asyncio.timeout(limit_s):
            await connection.send_packed_command(command)
            return await connection.read_response()
    except TimeoutError as error:
        raise AnswerTimeout(f"no answer within {limit_s} s") from error
    finally:  # whoever connects it again, or takes it from the pool
        connection.socket_timeout = limit_s
