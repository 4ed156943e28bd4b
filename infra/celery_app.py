"""The one Celery configuration, shared by producer, worker and Flower.

Owns: broker options, the ten levels, acknowledgement.
Never: tasks; a worker registers its own.

Levels and separator must be the same everywhere or whole levels go unread, so nobody else sets them.
"""

from typing import Any

from celery import Celery

from infra import config, keys
from infra.errors import StartError
from infra.redis_client import broker_errors, checked

# Until the broker is tried again. kombu's own pauses of 2, 4, 6 ... s go on long after it is back.
RECONNECT = {"interval_start": 0.1, "interval_step": 0.2, "interval_max": 1.0}
PUBLISH_TRIES = {"max_retries": 4, "connect_retries_timeout": 2}  # over before whoever publishes has given up


def build(settings: config.Settings) -> Celery:
    """A Celery application on `settings.redis_url`. Raises ConfigError when that is missing."""
    app = Celery("corral", broker=checked(settings.redis_url), set_as_current=False)
    app.conf.update(
        broker_transport_options={
            "priority_steps": list(keys.QUEUE_LEVELS),
            "sep": keys.SEPARATOR,
            "queue_order_strategy": "priority",
            "ack_emulation": False,  # a popped ticket is taken; its books cost two transactions each
            "socket_timeout": 2,
            "socket_connect_timeout": 2,
            "socket_keepalive": True,
            "health_check_interval": 5,
            **RECONNECT,
            **PUBLISH_TRIES,
        },
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_channel_error_retry=True,  # a failover answers READONLY for a while
        broker_pool_limit=16,
        task_acks_late=False,  # the record is the truth; see decision 0002
        worker_disable_prefetch=True,
        worker_prefetch_multiplier=1,
        worker_disable_rate_limits=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        task_ignore_result=True,
        task_default_priority=5,  # an unset priority would be 0, the most urgent
        task_create_missing_queues=True,
        task_serializer="json",
        accept_content=["json"],
        worker_send_task_events=True,  # Flower knows only what it heard of
        task_send_sent_event=False,
    )
    return app


def agree(app: Celery, redis: Any) -> None:
    """At a part's start: that all who share the broker lay out their queues alike. `redis` is a client for threads.

    Raises StartError when another version of Corral has laid them out otherwise, BrokerDown without a broker.
    """
    options = app.conf.broker_transport_options
    mine = f"{keys.queue('*')} {options['sep']!r} {options['priority_steps']}"
    with broker_errors():
        redis.set(keys.LAYOUT, mine, nx=True)
        theirs = (redis.get(keys.LAYOUT) or mine.encode()).decode()
    if theirs != mine:
        words = f"the queues on this broker are laid out as {theirs}, here as {mine}: another version of Corral uses it"
        raise StartError("broker", f"{words}; stop that one and empty the broker, or name another in CORRAL_REDIS_URL")
