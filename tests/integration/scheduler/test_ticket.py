"""A ticket that a script lays is the one that Celery would have published."""

import base64
from typing import Any

import orjson
import pytest

from infra import keys
from infra.celery_app import build
from infra.config import Settings
from scheduler.contract import LEVELS
from scheduler.queue import Tickets
from tests.doubles.broker import Broker
from tests.integration.scheduler.store import Store, candidates, spec

pytestmark = pytest.mark.integration
AGENTS = ("agent", 'a "quoted" one, "routing_key":"llm.w1"', "ein Käfer 🪲", "\\", "")
MADE_EACH_TIME = ("id", "root_id", "correlation_id", "delivery_tag")
OF_NO_USE = ("reply_to", "argsrepr", "kwargsrepr")  # of the properties: nobody replies, the headers show the rest


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_ticket_is_what_celery_would_publish(broker: Broker, level: int, agent: str) -> None:
    tickets = Tickets(build(Settings(redis_url=broker.url)))
    try:
        tickets.send("job", agent, "w1", level)
        published = broker.client.rpop(keys.level_list("w1", level))
        written = tickets.written("job", agent, level)
    finally:
        tickets.close()
    assert meaning(written.head + b"w1" + written.tail) == meaning(published)


async def test_a_job_and_its_ticket_come_in_one_step_and_only_once(store: Store) -> None:
    store.worker("w1")
    store.worker("w2")
    tickets = Tickets(build(Settings(redis_url=store.url)))
    job = spec(3)
    try:
        written = tickets.written(job.id, "agent", 3)
    finally:
        tickets.close()
    for _ in range(2):  # a command whose answer was lost is sent again
        assert (await store.jobs.admit(job, candidates("w2", "w1"), 1, ticket=written)).worker == "w2"
    assert (sum(store.tickets("w1")), sum(store.tickets("w2"))) == (0, 1)
    (laid,) = store.raw.lrange(keys.level_list("w2", 3), 0, -1)
    assert meaning(laid)["properties"]["delivery_info"]["routing_key"] == keys.queue("w2")


def meaning(text: Any) -> dict[str, Any]:
    """A message without what is new in each, its body in clear."""
    message: dict[str, Any] = orjson.loads(text)
    assert message["properties"]["body_encoding"] == "base64"
    message["body"] = orjson.loads(base64.b64decode(message["body"]))
    for part in (message["headers"], message["properties"]):
        for name in MADE_EACH_TIME:
            if name in part:
                assert len(str(part.pop(name))) == 36
    for name in OF_NO_USE:
        message["properties"].pop(name, None)
    return message
