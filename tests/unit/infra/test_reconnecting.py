"""How soon Celery and kombu try a broker again that was away. No clock: what they sleep is counted, not slept."""

from collections.abc import Iterator

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from kombu.utils import functional

from infra.celery_app import build
from infra.config import Settings
from scheduler.queue import PUBLISH_LIMIT_S, Tickets
from tests.doubles.services import free_port
from workers.consumer import GatheringConsumer

pytestmark = pytest.mark.unit
LONGEST_S = 1.0
TRIES = 12


@pytest.fixture
def app() -> Iterator[Celery]:
    """On a broker that refuses every connection."""
    with build(Settings(redis_url=f"redis://127.0.0.1:{free_port()}/0")) as app:
        yield app


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that kombu sleeps between its tries."""
    pauses: list[float] = []
    monkeypatch.setattr(functional, "sleep", pauses.append)
    return pauses


def test_a_worker_is_back_within_a_second_however_long_the_broker_was_away(app: Celery, slept: list[float]) -> None:
    app.conf.broker_connection_max_retries = TRIES
    consumer = GatheringConsumer.__new__(GatheringConsumer)  # its start would need a whole worker
    consumer.app = app
    with pytest.raises(OperationalError):
        consumer.connection_for_read()
    assert len([pause_s for pause_s in slept if pause_s]) == TRIES
    assert slept[0] < LONGEST_S / 4
    assert max(slept) <= LONGEST_S


def test_a_ticket_s_sender_has_given_up_before_whoever_waits_for_it(app: Celery, slept: list[float]) -> None:
    with pytest.raises(OperationalError):
        Tickets(app)._send("job", "agent", "w1", 5)
    assert slept[0] < LONGEST_S / 4
    assert 0 < sum(slept) < PUBLISH_LIMIT_S
