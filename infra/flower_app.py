"""Flower as a process of its own, on Corral's Celery configuration.

Owns: what Flower may show and to whom, and which queues it lists.
Never: changes anything; Flower runs read-only.
"""

import sys
import threading
import time
from contextlib import suppress
from typing import Any

from flower.views import BaseHandler

from infra import entry, keys
from infra.celery_app import agree, build
from infra.config import Settings
from infra.errors import BrokerDown, ConfigError, StartError
from infra.network import is_loopback
from infra.redis_client import broker_errors, sync_client

MOST_TASKS = 2000
REFRESH_S = 1.0


def run(settings: Settings) -> None:
    """Serve until a signal comes. Raises ConfigError for an open address without a password, StartError for one
    that is taken, and for queues that are laid out otherwise."""
    password = settings.flower_password.get_secret_value()
    if not is_loopback(settings.flower_host) and not password:
        raise ConfigError("CORRAL_FLOWER_PASSWORD: needed as user:password when Flower listens beyond loopback")
    if password and ":" not in password:
        raise ConfigError("CORRAL_FLOWER_PASSWORD: must be of the form user:password")
    app = build(settings)
    redis = sync_client(settings.redis_url, connections=2)
    with suppress(BrokerDown):
        agree(app, redis)
    _list_all_queues(redis)
    arguments = [
        "flower",
        f"--address={settings.flower_host}",
        f"--port={settings.flower_port}",
        "--read_only=True",
        "--persistent=False",
        f"--max_tasks={MOST_TASKS}",
        "--tasks_columns=args,state,received,started,runtime,worker,uuid",
    ]
    if password:
        arguments.append(f"--basic_auth={password}")
    try:
        app.start(arguments)
    except OSError as error:
        address = f"{settings.flower_host}:{settings.flower_port}"
        raise StartError("flower", f"cannot listen on {address} ({error.strerror or error})") from error


class QueueNames:
    """The queues of every worker seen lately, asked for in a thread: no page waits for a broker that hangs."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self.latest: list[str] = []

    def refresh(self) -> None:
        """Ask once; without an answer the last one stays."""
        with suppress(BrokerDown), broker_errors():
            workers = self._redis.zrange(keys.WORKERS, 0, -1)
            self.latest = sorted(keys.queue(name.decode()) for name in workers)

    def keep_fresh(self) -> None:
        """Ask again and again; never returns."""
        while True:
            self.refresh()
            time.sleep(REFRESH_S)


def _list_all_queues(redis: Any) -> None:
    """Flower asks the workers for their queues, so the queue of a dead worker, the one to look at, is not listed.

    The broker knows every worker seen lately; its names replace Flower's own list.
    """
    names = QueueNames(redis)
    threading.Thread(target=names.keep_fresh, name="queue-names", daemon=True).start()
    BaseHandler.get_active_queue_names = lambda _: names.latest


def main() -> int:
    """The exit code of this process."""
    return entry.run("flower", run)


if __name__ == "__main__":
    sys.exit(main())
