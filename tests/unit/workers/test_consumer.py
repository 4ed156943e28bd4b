"""Celery's consumer, as far as a ticket is acknowledged by it."""

import threading
from types import SimpleNamespace

import pytest
from celery import Celery
from kombu.asynchronous import Hub

from workers.consumer import GatheringConsumer

pytestmark = pytest.mark.unit


def test_a_ticket_is_acknowledged_by_the_thread_that_took_it_and_the_hub_sleeps_on() -> None:
    hub = Hub()
    controller = SimpleNamespace(use_eventloop=True, state=None)
    consumer = GatheringConsumer(print, app=Celery(broker="memory://"), hub=hub, controller=controller)
    by: list[int] = []
    thread = threading.Thread(target=consumer.call_soon_ack, args=(lambda: by.append(threading.get_ident()),))
    thread.start()
    thread.join()
    assert by == [thread.ident]
    assert not hub._ready
