"""A ticket that a script lays is the one that Celery would have published."""

import base64
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra import keys
from infra.celery_app import build
from infra.config import Settings
from scheduler.contract import LEVELS
from scheduler.queue import Tickets
from scheduler.ticket import Ticket
from tests.doubles.broker import Broker
from tests.integration.scheduler.store import Store, candidates, spec

pytestmark = pytest.mark.integration
AGENTS = (
    "agent",
    'a "quoted" one, "routing_key":"llm.w1"',
    "ein Käfer 🪲",
    "\\",
    "",
    "100 %, %(job)b, {}, <tag>, <body>",
)
MADE_EACH_TIME = ("id", "root_id", "correlation_id", "delivery_tag")
OF_NO_USE = ("reply_to", "argsrepr", "kwargsrepr")  # of the properties: nobody replies, the headers show the rest


@pytest.fixture
def tickets(broker: Broker) -> Iterator[Tickets]:
    made = Tickets(build(Settings(redis_url=broker.url)))
    yield made
    made.close()


def published(tickets: Tickets, broker: Broker, agent: str, level: int) -> Any:
    """What Celery puts into the list."""
    tickets.send("job", agent, "w1", level)
    return broker.client.rpop(keys.level_list("w1", level))


def whole(ticket: Ticket) -> bytes:
    return ticket.head + b"w1" + ticket.tail


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_ticket_is_what_celery_would_publish(tickets: Tickets, broker: Broker, level: int, agent: str) -> None:
    assert meaning(whole(tickets.written("job", agent, level))) == meaning(published(tickets, broker, agent, level))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    agent=st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\%{}<>')), level=st.sampled_from(LEVELS)
)
def test_whatever_an_agent_calls_itself(tickets: Tickets, broker: Broker, agent: str, level: int) -> None:
    tickets.written("earlier", "another", level)
    assert meaning(whole(tickets.written("job", agent, level))) == meaning(published(tickets, broker, agent, level))


def test_no_two_tickets_are_one(tickets: Tickets) -> None:
    first, second = (orjson.loads(whole(tickets.written("job", "agent", 5))) for _ in range(2))
    assert first["headers"]["id"] == first["headers"]["root_id"] == first["properties"]["correlation_id"]
    assert first["headers"]["id"] != second["headers"]["id"]
    assert first["properties"]["delivery_tag"] != second["properties"]["delivery_tag"]


async def test_a_job_and_its_ticket_come_in_one_step_and_only_once(store: Store, tickets: Tickets) -> None:
    store.worker("w1")
    store.worker("w2")
    job = spec(3)
    written = tickets.written(job.id, "agent", 3)
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
