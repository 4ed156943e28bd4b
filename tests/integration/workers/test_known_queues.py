"""Failures that Celery on Redis is known for, as far as they are its queues': tickets, levels, crowds."""

import asyncio
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra import keys
from infra.celery_app import agree, build
from infra.config import Settings
from infra.errors import BrokerDown, StartError
from infra.redis_client import sync_client
from scheduler.contract import LEVELS, Failed, Finished, JobSpec, TextDelta
from scheduler.queue import THREADS, Tickets
from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.proxy import Proxy
from tests.doubles.services import wait_for
from tests.integration.scheduler.store import Store, candidates, packed, spec
from tests.integration.workers.clients import line, tickets

pytestmark = pytest.mark.integration

CROWD, WAIT_MS = 1000, 600_000
LEASE_S = 60.0  # the frozen worker is not taken for dead while the crowd comes
PUBLISHED = 40
A_PART = {"worker": "workers.app", "api": "api.app"}


def told(store: Store, job_id: str) -> tuple[str, int]:
    """The text that stands in a job's stream, and how often it ends."""
    deltas = [delta for _, some in store.written(job_id) for delta in some]
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    return text, len([delta for delta in deltas if isinstance(delta, Finished | Failed)])


def states(broker: Broker, specs: Sequence[JobSpec]) -> set[str | None]:
    pipeline = broker.client.pipeline(transaction=False)
    for one in specs:
        pipeline.hget(keys.job(one.id), "state")
    return set(pipeline.execute())


async def test_of_a_thousand_jobs_none_is_lost_with_a_frozen_worker_that_dies_with_a_ticket(
    tmp_path: Path, broker: Broker
) -> None:
    """A message that is popped for a process which never reads it is in no list any more."""
    specs = [spec(wait_limit_ms=WAIT_MS).model_copy(update={"request": packed("say 1 words")}) for _ in range(CROWD)]
    with (
        closing(Tickets(build(Settings(redis_url=broker.url)))) as sender,
        Cluster(tmp_path, broker.url, workers=1, slots=16, settings={"lease_lifetime_s": LEASE_S}) as cluster,
    ):
        store = Store(broker.url, broker.client, queue_limit=CROWD)
        await store.jobs.announce()
        taken_along = 0
        for job in specs:
            if not taken_along:  # what a worker asked for before is popped for it, when that comes soon enough
                wait_for(lambda: line(cluster) == 0, "the jobs before to be taken")
                os.kill(cluster.workers["w1"].pid, signal.SIGSTOP)
            await store.jobs.admit(job, candidates("w1"), 1)
            sender.send(job.id, "agent", "w1", job.level)
            taken_along = taken_along or line(cluster) - sum(tickets(cluster))
            if not taken_along:
                os.kill(cluster.workers["w1"].pid, signal.SIGCONT)
        assert taken_along
        cluster.kill_worker("w1")
        broker.client.delete(keys.lease("w1"))  # it would have run out
        cluster.add_worker("w1")
        wait_for(lambda: states(broker, specs) == {"done"}, "a thousand answers", 120)
        assert [told(store, job.id) for job in specs] == [("w1", 1)] * CROWD
        assert (line(cluster), sum(tickets(cluster))) == (0, 0)
        await store.close()


async def test_tickets_for_a_broker_that_hangs_pile_up_no_threads(own_broker: Broker) -> None:
    sender = Tickets(build(Settings(redis_url=own_broker.url)))
    try:
        await sender.publish("job", "agent", "w1", 5)
        others = threading.active_count() - sum(thread.name.startswith("tickets") for thread in threading.enumerate())
        own_broker.freeze()
        sent = asyncio.gather(
            *(sender.publish("job", "agent", "w1", 5) for _ in range(PUBLISHED)), return_exceptions=True
        )
        refused = await sent
        assert [type(error) for error in refused] == [BrokerDown] * PUBLISHED
        assert threading.active_count() <= others + THREADS
        own_broker.thaw()
        await sender.publish("job", "agent", "w1", 5)
    finally:
        own_broker.thaw()
        sender.close()


async def test_a_ticket_is_taken_though_the_connection_that_rested_is_dead(own_broker: Broker) -> None:
    """Nothing says so before it is used, and the request that meets it would be refused."""
    with Proxy(own_broker.port) as proxy:
        sender = Tickets(build(Settings(redis_url=proxy.url)))
        await sender.publish("job", "agent", "w1", 5)
        proxy.lose()
        proxy.mend()
        await sender.publish("job", "agent", "w1", 5)
        assert own_broker.client.llen(keys.level_list("w1", 5)) == 2
        sender.close()


@settings(max_examples=25, deadline=None)
@given(levels=st.lists(st.sampled_from(LEVELS), max_size=30))
def test_tickets_are_counted_and_taken_level_by_level_and_in_the_order_in_which_they_came(
    session_broker: Broker, levels: list[int]
) -> None:
    """Steps or separators that differ between producer, worker and Flower leave whole levels unread."""
    session_broker.flush()
    app = build(Settings(redis_url=session_broker.url))
    sender = Tickets(app)
    try:
        for number, level in enumerate(levels):
            sender.send(f"job-{number}", "agent", "w1", level)
        lengths = [session_broker.client.llen(keys.level_list("w1", level)) for level in LEVELS]
        assert lengths == [levels.count(level) for level in LEVELS]
        with app.connection_for_read() as connection, connection.channel() as channel:
            name = keys.queue("w1")
            if levels:
                assert channel.queue_declare(name, passive=True).message_count == len(levels)
            taken = [channel.basic_get(name, no_ack=True).decode()[0][0] for _ in levels]
        assert taken == [f"job-{number}" for number in sorted(range(len(levels)), key=lambda one: levels[one])]
    finally:
        sender.close()


@pytest.mark.parametrize("part", A_PART)
def test_a_part_that_would_lay_out_the_queues_otherwise_does_not_start(
    tmp_path: Path, broker: Broker, part: str
) -> None:
    """Whole levels would go unread, without a word."""
    other = build(Settings(redis_url=broker.url))
    other.conf.broker_transport_options["priority_steps"] = [0, 3, 6, 9]
    with closing(sync_client(broker.url)) as redis:
        agree(other, redis)
        agree(other, redis)  # with itself it may
        with pytest.raises(StartError, match="another version of Corral"):
            agree(build(Settings(redis_url=broker.url)), redis)
    cluster = Cluster(tmp_path, broker.url, workers=0)
    child = cluster.start_worker("w1") if part == "worker" else cluster.start_api(0)
    try:
        assert child.wait(30) == 1
        assert "laid out as llm.* '\\x06\\x16' [0, 3, 6, 9]" in child.tail()
    finally:
        child.stop()
        cluster._end()
