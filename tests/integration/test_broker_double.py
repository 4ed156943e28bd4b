"""The test's own broker."""

import pytest

from tests.doubles.broker import Broker

pytestmark = pytest.mark.integration


def test_a_broker_answers_and_starts_empty(broker: Broker) -> None:
    assert broker.client.dbsize() == 0
    broker.client.set("left", "behind")


def test_nothing_of_the_test_before_is_left(broker: Broker) -> None:
    assert broker.client.dbsize() == 0


def test_a_killed_broker_comes_back_on_the_same_port(own_broker: Broker) -> None:
    own_broker.kill()
    assert not own_broker.answers()
    own_broker.start()
    assert own_broker.answers()
