"""A consumer that takes no tickets is found out, and one that has a reason is not."""

import signal
from types import SimpleNamespace
from typing import cast

import pytest

from infra.errors import BrokerDown
from workers.consuming import MOST_LOOKS, SPARE_LOOKS, Consuming
from workers.running import Running
from workers.serving import Serving

pytestmark = pytest.mark.unit

DRAIN_S = 5.0


class House:
    """A worker with two slots in whose queue tickets lie; None: the broker does not say how many."""

    def __init__(self, waiting: int | None = 3, slots: int = 2) -> None:
        self.waiting = waiting
        self.running = Running()
        self.serving = SimpleNamespace(name="w1", usable_slots=lambda: slots)
        self.sent: list[int] = []
        serving = cast(Serving, self.serving)
        self.consuming = Consuming(
            self._tickets, self.running, serving, DRAIN_S, lambda _, number: self.sent.append(number)
        )

    def _tickets(self) -> int:
        if self.waiting is None:
            raise BrokerDown("away", retry_after_s=5)
        return self.waiting

    def look(self, times: int) -> list[int]:
        for _ in range(times):
            self.consuming.look()
        return self.sent


def test_a_worker_that_takes_nothing_is_told_to_end_and_killed_if_it_does_not() -> None:
    house = House()
    assert house.look(MOST_LOOKS - 1) == []
    assert house.look(1) == [signal.SIGTERM]
    assert house.look(int(DRAIN_S) + SPARE_LOOKS - 1) == [signal.SIGTERM]
    assert house.look(1) == [signal.SIGTERM, signal.SIGKILL]


@pytest.mark.parametrize(("waiting", "slots"), [(0, 2), (None, 2), (3, 0)], ids=["none wait", "no broker", "no slot"])
def test_a_worker_that_has_nothing_to_take_or_no_slot_is_left_alone(waiting: int | None, slots: int) -> None:
    assert House(waiting, slots).look(3 * MOST_LOOKS) == []


def test_a_worker_whose_slots_are_all_in_use_is_left_alone() -> None:
    house = House()
    with house.running.task(), house.running.task():
        assert house.look(3 * MOST_LOOKS) == []
    assert house.look(MOST_LOOKS) == [signal.SIGTERM]


def test_each_ticket_that_is_taken_begins_the_count_anew() -> None:
    house = House()
    for _ in range(4):
        assert house.look(MOST_LOOKS - 1) == []
        with house.running.task():
            pass
        assert house.look(1) == []


def test_a_broker_that_is_away_in_between_begins_the_count_anew() -> None:
    house = House()
    house.look(MOST_LOOKS - 1)
    house.waiting = None
    house.look(1)
    house.waiting = 3
    assert house.look(MOST_LOOKS - 1) == []
