"""The broker dies, forgets, freezes, is cut off, is full or is replaced: no answer is lost, cut or told twice.

Each trouble meets two answers that are being made and one request that waits, all on one cluster behind a network of
the test's own.
"""

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import httpx
import pytest

from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.proxy import Proxy
from tests.doubles.services import wait_for
from tests.integration.workers.clients import Asking, Stream, body, last, text_of, words

pytestmark = pytest.mark.integration

MADE = "say 50 words at 10 tokens/s"
WHOLE = words(50)
REFUSED_WITHIN_S = 4.0
HEALTH_WITHIN_S = 0.1


@dataclass
class House:
    """A cluster with one slot in each of its two workers, and what lies between it and its brokers."""

    cluster: Cluster
    proxy: Proxy
    first: Broker
    second: Broker


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("broker-loss")
    for name in ("first", "second", "cluster"):
        (folder / name).mkdir()
    with (
        Broker(folder / "first", keeps=True) as first,
        Broker(folder / "second") as second,
        Proxy(first.port) as proxy,
        Cluster(folder / "cluster", proxy.url, workers=2, slots=1, killed_at_end=True) as cluster,
    ):
        yield House(cluster, proxy, first, second)


@contextmanager
def lasting(seconds: float) -> Iterator[None]:
    """How long a trouble lasts at least is its subject, beside what is asked meanwhile; nothing is measured by it."""
    ends_s = time.monotonic() + seconds
    yield
    last(ends_s - time.monotonic())


# --- the troubles ---------------------------------------------------------------------------------------------------

Trouble = Callable[[House], AbstractContextManager[None]]


@contextmanager
def restarted(house: House) -> Iterator[None]:
    house.first.kill()
    yield
    house.first.start()


@contextmanager
def restarted_empty(house: House) -> Iterator[None]:
    house.first.kill()
    yield
    shutil.rmtree(house.first.folder / "appendonlydir")
    house.first.start()


@contextmanager
def flushed(house: House) -> Iterator[None]:
    """It is never away."""
    house.first.flush()
    yield


@contextmanager
def frozen(house: House) -> Iterator[None]:
    house.first.freeze()
    try:
        with lasting(15):
            yield
    finally:
        house.first.thaw()


@contextmanager
def cut_off(house: House) -> Iterator[None]:
    house.proxy.cut()
    try:
        with lasting(2):
            yield
    finally:
        house.proxy.mend()


@contextmanager
def held_up(house: House) -> Iterator[None]:
    house.proxy.hold()
    try:
        with lasting(6):
            yield
    finally:
        house.proxy.mend()


@contextmanager
def full(house: House) -> Iterator[None]:
    house.first.limit_memory(1)
    try:
        with lasting(7):  # longer than a lease lives
            yield
    finally:
        house.first.limit_memory(0)


@contextmanager
def failed_over(house: House) -> Iterator[None]:
    """To a copy that was fed until then; the old one refuses writes before the way leads to the new one."""
    house.second.follow(house.first)
    house.second.lead()
    house.first.follow(house.second)
    yield
    house.proxy.mend(house.second.port)
    house.first, house.second = house.second, house.first


# --- what each must leave untouched -----------------------------------------------------------------------------------


def refuses(house: House) -> None:
    """While the broker is away: a request is refused in time, and the API's own health answers at once."""
    with httpx.Client(base_url=house.cluster.url, timeout=30, trust_env=False) as http:
        for _ in range(2):  # the first may find the API unaware
            began_s = time.monotonic()
            answer = http.post("/v1/messages", json=body("say 3 words", stream=False))
            assert answer.status_code == 503, answer.text
            assert int(answer.headers["retry-after"]) > 0
            assert time.monotonic() - began_s < REFUSED_WITHIN_S
        took_s = []
        for _ in range(20):
            began_s = time.monotonic()
            assert http.get("/live").status_code == 200
            took_s.append(time.monotonic() - began_s)
        assert statistics.median(took_s) < HEALTH_WITHIN_S


def told_once(stream: Stream) -> None:
    """The client saw one answer, from its first word to its end."""
    stream.answer.result()
    assert (stream.text, stream.last) == (WHOLE, "message_stop")
    assert [event["type"] for event in stream.events].count("message_start") == 1
    assert [event["type"] for event in stream.events].count("content_block_start") == 1


def pids(house: House) -> list[int]:
    return [child.process.pid for child in (*house.cluster.workers.values(), *house.cluster.apis) if child.alive]


@pytest.mark.parametrize("trouble", [restarted, flushed, restarted_empty, cut_off, held_up, frozen, full, failed_over])
def test_a_broker_that_is_lost_for_a_while_costs_no_answer(house: House, trouble: Trouble) -> None:
    cluster = house.cluster
    cluster.wait_ready(2)
    wait_for(lambda: cluster.status()["waiting"] == 0, "the house to be idle")
    before = pids(house)
    with Asking(cluster) as asking:
        streams = [asking.stream(MADE, f"{trouble.__name__}-{number}") for number in range(2)]
        assert all(stream.first_text.wait(30) for stream in streams)
        before_ticket = house.first.messages_sent()
        queued = asking.ask("say 3 words", f"{trouble.__name__}-queued")
        wait_for(lambda: cluster.status()["waiting"] == 1, "the job to wait")
        wait_for(lambda: house.first.messages_sent() > before_ticket, "its ticket")
        with trouble(house):
            if trouble is not flushed:
                refuses(house)
        for stream in streams:
            told_once(stream)
        assert text_of(queued.result()) == words(3)
        # Both workers' consumers are there again: two requests at once need both.
        cluster.wait_ready(2)
        both = [asking.ask("say 10 words at 20 tokens/s", f"{trouble.__name__}-after-{number}") for number in range(2)]
        assert [text_of(answer.result()) for answer in both] == [words(10)] * 2
    assert pids(house) == before
