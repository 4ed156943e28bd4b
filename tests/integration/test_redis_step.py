"""A step is a script of the broker: what it answers and raises is what redis-py's own way does."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from redis import Redis

from infra.errors import BrokerDown
from infra.redis_client import broker_errors, sync_client
from infra.redis_step import Step
from tests.doubles.broker import Broker
from tests.doubles.services import wait_for

pytestmark = pytest.mark.integration

TEXT = "redis.call('RPUSH', KEYS[1], ARGV[1]) return {KEYS[1], ARGV[1], ARGV[2], 7}"
FAILS = "return redis.call('HGET', KEYS[1], 'field')"
THREADS = 4


@pytest.fixture
def client(own_broker: Broker) -> Iterator[Redis]:
    made = sync_client(own_broker.url, timeout_s=0.2)
    yield made
    made.close()


def connections(broker: Broker) -> int:
    answer: Any = broker.client.client_list()
    return len(answer)


def test_it_answers_as_redis_pys_own_script_does(client: Redis) -> None:
    arguments: list[str | bytes | float] = ["text", b"\xff\x00", 2.5]
    expected = [b"name", b"text", b"\xff\x00", 7]
    assert Step(client, TEXT)(["name"], arguments) == client.register_script(TEXT)(["name"], arguments) == expected


def test_a_broker_that_was_started_again_costs_no_call(client: Redis, own_broker: Broker) -> None:
    """Neither its connection nor the text of the script is there any more."""
    step = Step(client, TEXT)
    step(["name"], ["before", 1])
    own_broker.kill()
    own_broker.start()
    assert step(["name"], ["after", 2]) == [b"name", b"after", b"2", 7]
    assert own_broker.client.lrange("name", 0, -1) == ["after"]


def test_what_goes_wrong_is_the_brokers_and_the_next_call_is_a_new_one(client: Redis, own_broker: Broker) -> None:
    step = Step(client, TEXT)
    step(["name"], ["before", 1])
    own_broker.freeze()
    with pytest.raises(BrokerDown), broker_errors():
        step(["name"], ["frozen", 2])
    own_broker.thaw()
    assert step(["other"], ["after", 3]) == [b"other", b"after", b"3", 7]


def test_an_error_of_the_script_leaves_the_connection_as_it_was(client: Redis, own_broker: Broker) -> None:
    step = Step(client, TEXT)
    step(["name"], ["text", 1])
    before = connections(own_broker)
    with pytest.raises(BrokerDown), broker_errors():
        Step(client, FAILS)(["name"], [])  # it is a list
    assert step(["name"], ["text", 2]) == [b"name", b"text", b"2", 7]
    assert connections(own_broker) <= before + 1  # redis-py's own, which has brought the script


def test_each_thread_has_a_connection_for_all_its_steps_and_closing_the_client_closes_them(
    client: Redis, own_broker: Broker
) -> None:
    texts = TEXT, f"{TEXT} -- another"
    steps = [Step(client, text) for text in texts]
    for text in texts:
        client.script_load(text)
    before = connections(own_broker)
    together = Barrier(THREADS)

    def work(number: int) -> list[Any]:
        together.wait()
        return [step(["name"], [str(number), number]) for _ in range(50) for step in steps]

    with ThreadPoolExecutor(THREADS) as threads:
        answers = list(threads.map(work, range(THREADS)))
        assert connections(own_broker) == before + THREADS
    for number, answer in enumerate(answers):
        assert answer == [[b"name", b"%d" % number, b"%d" % number, 7]] * 100
    client.close()
    wait_for(lambda: connections(own_broker) == 1, "all but the test's own connection to end")
