"""The sign of life, and how long the broker has answered without a pause."""

import asyncio

import pytest

from infra.errors import BrokerDown
from scheduler import contact
from scheduler.contact import Contact

pytestmark = pytest.mark.unit


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(contact, "monotonic", made)
    return made


class Broker:
    """Takes `takes_s` for each announcement, or does not answer."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.takes_s, self.down, self.heard = clock, 0.0, False, asyncio.Event()

    async def __call__(self) -> None:
        self.heard.set()
        self.clock.now_s += self.takes_s
        if self.down:
            raise BrokerDown("the broker does not answer")


async def test_contact_grows_with_quick_commands(clock: Clock) -> None:
    made = Contact(Broker(clock))
    assert made.unbroken_s == 0
    for _ in range(4):
        await made.announce_once()
        clock.now_s += 1
    assert made.unbroken_s == 4


async def test_one_slow_command_ends_the_contact_though_it_was_answered(clock: Clock) -> None:
    broker = Broker(clock)
    made = Contact(broker)
    await made.announce_once()
    clock.now_s += 10
    broker.takes_s = contact.SLOW_S + 0.5
    await made.announce_once()
    assert made.unbroken_s == 0


async def test_a_broker_that_does_not_answer_ends_the_contact_and_no_task(clock: Clock) -> None:
    broker = Broker(clock)
    made = Contact(broker)
    await made.announce_once()
    clock.now_s += 10
    broker.down = True
    running = asyncio.create_task(made.run())
    broker.heard.clear()
    await broker.heard.wait()
    assert made.unbroken_s == 0
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])


async def test_what_takes_long_between_commands_is_not_the_brokers_fault(clock: Clock) -> None:
    made = Contact(Broker(clock))
    await made.announce_once()
    for _ in range(3):
        with made.watched():
            clock.now_s += 0.1
        clock.now_s += 30  # much to do
    assert made.unbroken_s > 90
