"""A ticket as text, for a script that lays it where it puts a job.

Owns: the message that Celery would publish, cut where a worker's name belongs: Celery and kombu make one of each level,
and each ticket puts its own parts into that.
Never: publishes one (`queue`), a job.

A record whose ticket is still to come is one round trip and one thread away from being picked up, and a process that
dies in between leaves it to `recovery`. One script writes both.
"""

from base64 import b64encode
from dataclasses import dataclass
from uuid import uuid4

import orjson
from celery import Celery
from kombu import Connection, serialization

from infra import keys
from scheduler.contract import TASK_NAME

ROUTING_KEY = b'"routing_key":"'  # the last one of a ticket
PARTS = ("job", "agent", "task", "tag", "body")  # in which tickets of a level differ


@dataclass(frozen=True, slots=True)
class Ticket:
    """One ticket; between `head` and `tail` belongs the name of the worker whose queue it is for."""

    head: bytes
    tail: bytes


NO_TICKET = Ticket(b"", b"")


@dataclass(frozen=True, slots=True)
class _Form:
    """All tickets of a level, as byte strings whose `%` puts the parts in."""

    head: bytes
    tail: bytes
    body: bytes


class TicketWriter:
    """Writes tickets. For one thread."""

    def __init__(self, app: Celery) -> None:
        self._amqp = app.amqp
        self._channel = Connection("memory://").channel()  # only for the form of its messages
        self._forms: dict[int, _Form] = {}

    def write(self, job_id: str, agent: str, level: int) -> Ticket:
        """The ticket of a job, for any worker."""
        form = self._forms.get(level) or self._forms.setdefault(level, self._form(level))
        parts = {b"job": _quoted(job_id), b"agent": _quoted(agent), b"task": _new_id(), b"tag": _new_id()}
        parts[b"body"] = b64encode(form.body % parts)
        return Ticket(form.head % parts, form.tail % parts)

    def _form(self, level: int) -> _Form:
        """What Celery and kombu make of a ticket whose parts are blanks."""
        described = describe(_blank("job"), _blank("agent"), level)
        task = self._amqp.as_task_v2(_blank("task"), TASK_NAME, ignore_result=True, **described)
        content_type, encoding, body = serialization.dumps(task.body, serializer="json")
        properties = task.properties | {"delivery_mode": 2}
        message = self._channel.prepare_message(body, level, content_type, encoding, task.headers, properties)
        self._channel._inplace_augment_message(message, exchange="", routing_key=keys.queue(""))
        message["body"], message["properties"]["delivery_tag"] = _blank("body"), _blank("tag")
        text = orjson.dumps(message)
        cut = text.rindex(ROUTING_KEY) + len(ROUTING_KEY) + len(keys.queue(""))
        return _Form(_to_fill(text[:cut]), _to_fill(text[cut:]), _to_fill(body.encode()))


def _blank(part: str) -> str:
    return f"<{part}>"


def _to_fill(text: bytes) -> bytes:
    text = text.replace(b"%", b"%%")
    for part in PARTS:
        text = text.replace(_blank(part).encode(), f"%({part})b".encode())
    return text


def _quoted(text: str) -> bytes:
    """As it stands between the quotes of a JSON string."""
    return orjson.dumps(text)[1:-1]


def _new_id() -> bytes:
    return str(uuid4()).encode()


def describe(job_id: str, agent: str, level: int) -> dict[str, object]:
    """The arguments of a ticket's task, and how Flower shows them."""
    return {
        "args": (job_id, agent, level),
        "argsrepr": f"agent {agent}, level {level}, job {job_id}",
        "kwargsrepr": "",
    }
