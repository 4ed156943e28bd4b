"""A ticket as text, for a script that lays it where it puts a job.

Owns: the message that Celery would publish, made by Celery and kombu, cut where a worker's name belongs.
Never: publishes one (`queue`), a job.

A record whose ticket is still to come is one round trip and one thread away from being picked up, and a process that
dies in between leaves it to `recovery`. One script writes both.
"""

import uuid
from dataclasses import dataclass

import orjson
from celery import Celery
from kombu import Connection, serialization

from infra import keys
from scheduler.contract import TASK_NAME

ROUTING_KEY = b'"routing_key":"'  # the last one of a ticket: quotes within an agent's name are escaped


@dataclass(frozen=True, slots=True)
class Ticket:
    """One ticket; between `head` and `tail` belongs the name of the worker whose queue it is for."""

    head: bytes
    tail: bytes


NO_TICKET = Ticket(b"", b"")


class TicketWriter:
    """Writes tickets. For one thread."""

    def __init__(self, app: Celery) -> None:
        self._amqp = app.amqp
        self._channel = Connection("memory://").channel()  # only for the form of its messages

    def write(self, job_id: str, agent: str, level: int) -> Ticket:
        """The ticket of a job, for any worker."""
        described = describe(job_id, agent, level)
        task = self._amqp.as_task_v2(str(uuid.uuid4()), TASK_NAME, ignore_result=True, **described)
        content_type, encoding, body = serialization.dumps(task.body, serializer="json")
        properties = task.properties | {"delivery_mode": 2}
        message = self._channel.prepare_message(body, level, content_type, encoding, task.headers, properties)
        self._channel._inplace_augment_message(message, exchange="", routing_key=keys.queue(""))
        text = orjson.dumps(message)
        cut = text.rindex(ROUTING_KEY) + len(ROUTING_KEY) + len(keys.queue(""))
        return Ticket(text[:cut], text[cut:])


def describe(job_id: str, agent: str, level: int) -> dict[str, object]:
    """The arguments of a ticket's task, and how Flower shows them."""
    return {
        "args": (job_id, agent, level),
        "argsrepr": f"agent {agent}, level {level}, job {job_id}",
        "kwargsrepr": "",
    }
