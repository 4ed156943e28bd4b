"""Clients of the broker, and the border where its errors become ours.

Owns: time limits, retries and pool sizes of every Redis connection outside Celery.
Never: a key or a command.

redis-py 8 retries a timed-out command and caps its pools; both defaults are set here on purpose: few retries, and
pools that make a caller wait, not fail. A retried command may be carried out twice. Our writes are made for that: a
script looks at the record first, a claim carries a token; the worst of a second copy is a surplus ticket, count
or wake.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from infra.errors import BrokerDown, ConfigError

COMMAND_TIMEOUT_S = 2.0
BLOCK_MS = 1000  # below every socket timeout: a longer BLOCK never returns cleanly with redis-py 8
READ_TIMEOUT_S = 4.0
POOL_WAIT_S = 2.0
RETRIES = 1
_BACKOFF = ExponentialBackoff(cap=0.2, base=0.05)


def async_client(
    url: str, *, connections: int = 32, timeout_s: float = COMMAND_TIMEOUT_S, name: str | None = None
) -> redis.asyncio.Redis:
    """A client for one event loop. Its commands fail within about `timeout_s` times two.

    The broker knows its connections by `name`, for as long as the process lives that holds them.
    """
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        checked(url),
        **_limits(connections, timeout_s),
        client_name=name,
        retry=redis.asyncio.retry.Retry(_BACKOFF, RETRIES),
    )
    return redis.asyncio.Redis.from_pool(pool)


def sync_client(url: str, *, connections: int = 32, timeout_s: float = COMMAND_TIMEOUT_S) -> redis.Redis:
    """A client that threads share. Its commands fail within about `timeout_s` times two."""
    pool = redis.BlockingConnectionPool.from_url(
        checked(url),
        **_limits(connections, timeout_s),
        retry=Retry(_BACKOFF, RETRIES),
    )
    return redis.Redis.from_pool(pool)


def _limits(connections: int, timeout_s: float) -> dict[str, Any]:
    return {
        "max_connections": connections,
        "timeout": POOL_WAIT_S,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": COMMAND_TIMEOUT_S,
        "socket_keepalive": True,
    }


def checked(url: str) -> str:
    """The URL itself; raises ConfigError when it is empty or not one of Redis."""
    if not url:
        raise ConfigError("CORRAL_REDIS_URL: not set; `corral up` starts a broker, or name one as redis://HOST:PORT/0")
    if not url.startswith(("redis://", "rediss://")):  # Celery knows no unix:// (and a socket is no faster: 0031)
        raise ConfigError("CORRAL_REDIS_URL: must begin with redis:// or rediss://")
    return url


def redacted(url: str) -> str:
    """The URL for the eyes of everybody: without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@contextmanager
def broker_errors() -> Iterator[None]:
    """Everything that goes wrong between us and Redis leaves this block as BrokerDown."""
    try:
        yield
    except (redis.RedisError, OSError, TimeoutError) as error:
        raise BrokerDown(f"the broker does not answer ({type(error).__name__})", retry_after_s=5) from error


def being_cancelled() -> bool:
    """Whether the current task was told to end. A loop around commands must ask: on Python 3.11 a command that is just
    finishing can swallow the cancellation (`asyncio.wait_for` inside redis-py)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
