"""Flower lists every queue the broker knows, and no page of it waits for the broker."""

import threading

import pytest

from infra.flower_app import QueueNames

pytestmark = pytest.mark.unit


class SlowBroker:
    """Answers as it is told: names, an error, or not before it is let go."""

    def __init__(self) -> None:
        self.answer: list[bytes] | Exception = [b"w2", b"w1"]
        self.asked = threading.Semaphore(0)
        self.may_answer = threading.Event()
        self.may_answer.set()

    def zrange(self, *_: object) -> list[bytes]:
        self.asked.release()
        self.may_answer.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_the_queue_of_every_known_worker_is_listed() -> None:
    names = QueueNames(SlowBroker())
    names.refresh()
    assert names.latest == ["llm.w1", "llm.w2"]


def test_a_broker_that_hangs_or_fails_leaves_the_last_answer() -> None:
    broker = SlowBroker()
    names = QueueNames(broker)
    names.refresh()
    broker.answer = ConnectionError("gone")
    names.refresh()
    assert names.latest == ["llm.w1", "llm.w2"]

    broker.answer = [b"w3"]
    broker.may_answer.clear()
    asking = threading.Thread(target=names.refresh)
    asking.start()
    broker.asked.acquire()
    assert names.latest == ["llm.w1", "llm.w2"]
    broker.may_answer.set()
    asking.join()
    assert names.latest == ["llm.w3"]
