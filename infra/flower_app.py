"""Flower as a process of its own, on Corral's Celery configuration.

Owns: what Flower may show and to whom, and which queues it lists.
Never: changes anything; Flower runs read-only.
"""

import sys
from typing import Any

from flower.views import BaseHandler

from infra import config, keys
from infra.celery_app import build
from infra.config import Settings
from infra.errors import BrokerDown, ConfigError, CorralError
from infra.network import is_loopback
from infra.redis_client import broker_errors, sync_client

MOST_TASKS = 2000


def run(settings: Settings) -> None:
    """Serve until a signal comes. Raises ConfigError for an open address without a password."""
    password = settings.flower_password.get_secret_value()
    if not is_loopback(settings.flower_host) and not password:
        raise ConfigError("CORRAL_FLOWER_PASSWORD: needed as user:password when Flower listens beyond loopback")
    if password and ":" not in password:
        raise ConfigError("CORRAL_FLOWER_PASSWORD: must be of the form user:password")
    _list_all_queues(settings)
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
    build(settings).start(arguments)


def _list_all_queues(settings: Settings) -> None:
    """Flower asks the workers for their queues, so the queue of a dead worker, the one to look at, is not listed.

    The broker knows every worker seen lately; its names replace Flower's own list.
    """
    redis = sync_client(settings.redis_url, connections=2)

    def names(_: object) -> list[str]:
        try:
            with broker_errors():
                workers: Any = redis.zrange(keys.WORKERS, 0, -1)
        except BrokerDown:
            return []
        return sorted(keys.queue(name.decode()) for name in workers)

    BaseHandler.get_active_queue_names = names


def main() -> int:
    """Exit code 0 after a signal, 1 when Flower could not start; the last line of stderr then says why."""
    try:
        run(config.load().settings)
    except (CorralError, OSError) as error:
        print(f"error: flower: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
