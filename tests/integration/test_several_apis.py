"""Several API processes behind one port: the loss of one costs its own clients their answers, and nobody else."""

import os
import re
import signal
from pathlib import Path

import httpx
import psutil
import pytest

from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.corral import Corral, said, until_said
from tests.doubles.processes import Child
from tests.doubles.services import wait_for
from tests.integration.workers.clients import Asking, Stream, line, outcomes, running, text_of, words

pytestmark = pytest.mark.integration
WORDS = 200
LONG = f"say {WORDS} words at 15 tokens/s"
MOST_STREAMS = 40
SURE = 10


def clients(cluster: Cluster, api: Child) -> int:
    """How many connections of clients one API process holds."""
    connections = psutil.Process(api.pid).net_connections(kind="tcp")
    return sum(
        c.status == psutil.CONN_ESTABLISHED and bool(c.laddr) and c.laddr.port == cluster.ports[0] for c in connections
    )


def until_each_is_ready(cluster: Cluster) -> None:
    """A process that has only just come knows no worker yet, and the other one may have answered for it."""
    ready: set[str] = set()

    def all_ready() -> bool:
        status = httpx.get(f"{cluster.url}/v1/status", trust_env=False).json()  # on a connection of its own
        if any(worker["state"] == "ready" for worker in status["workers"]):
            ready.add(status["api"])
        return len(ready) == len(cluster.apis)

    wait_for(all_ready, "each process to know the worker", 30)


def streams_at_both(cluster: Cluster, asking: Asking) -> list[Stream]:
    """Streams that are being answered, more of them until each process has some: the kernel spreads them as it likes.

    They begin together, so that none has ended before the last one began.
    """
    until_each_is_ready(cluster)
    streams: list[Stream] = []
    while not all(clients(cluster, api) >= 2 for api in cluster.apis):
        assert len(streams) < MOST_STREAMS, [clients(cluster, api) for api in cluster.apis]
        more = [asking.stream(LONG, f"agent-{len(streams)}-{number}") for number in range(SURE)]
        assert all(stream.first_text.wait(30) for stream in more)
        streams += more
    return streams


def ends_well(stream: Stream) -> bool:
    try:
        stream.answer.result()
    except httpx.TransportError:
        return False
    return (stream.text, stream.last) == (words(WORDS), "message_stop")


def test_a_killed_api_takes_its_own_jobs_along_and_no_others(tmp_path: Path, broker: Broker) -> None:
    options = {"workers": 1, "slots": MOST_STREAMS, "api_count": 2, "one_port": True}
    with Cluster(tmp_path, broker.url, **options) as cluster, Asking(cluster) as asking:  # type: ignore[arg-type]
        streams = streams_at_both(cluster, asking)
        lost, kept = cluster.apis
        cluster.stopped.add(lost.log.stem)
        os.kill(lost.pid, signal.SIGKILL)
        ended = [ends_well(stream) for stream in streams]
        assert 0 < ended.count(True) < len(streams)
        wait_for(lambda: running(cluster) == 0, "nothing to run")
        # Cut in their middle, long before they would have ended, and only those that nobody read.
        assert (outcomes(cluster).count("cancelled"), line(cluster)) == (ended.count(False), 0)
        assert [text_of(cluster.messages("say 3 words")) for _ in range(4)] == [words(3)] * 4
        log = kept.log.read_text()
        assert "api_gone" in log
        assert '"part": "api-1"' in log


def test_a_frozen_api_keeps_its_jobs(tmp_path: Path, broker: Broker) -> None:
    """Its clients are still there, and so is its connection to the broker."""
    with Cluster(tmp_path, broker.url, workers=1, slots=1, api_count=2) as cluster, Asking(cluster) as asking:
        stream = asking.stream(LONG, "patient")
        assert stream.first_text.wait(30)
        frozen = cluster.apis[0]
        frozen.send(signal.SIGSTOP)
        silent = f"corral:wake:{api_of(cluster)}"
        wait_for(lambda: cluster.redis.pttl(silent) < 53_000, "it to be silent for long enough", 20)
        frozen.send(signal.SIGCONT)
        assert ends_well(stream)


def api_of(cluster: Cluster) -> str:
    """The process that the one running job is of."""
    (job,) = cluster.redis.scan_iter("corral:job:*")
    return str(cluster.redis.hget(job, "api"))


def alone(corral: Corral) -> tuple[Child, str]:
    """Two API processes that `corral api` has started, and their address; it answers."""
    child = corral.run("api", "--workers", "2", "--port", "0")
    until_said(child, "API: 2 processes on")
    found = re.search(r"on (http://\S+),", said(child))
    assert found is not None
    wait_for(lambda: lives(found[1]), "the port to answer", 30)
    return child, found[1]


def test_several_that_stand_alone_are_looked_after_and_end_with_their_command(tmp_path: Path, broker: Broker) -> None:
    with Corral(tmp_path, {"CORRAL_REDIS_URL": broker.url, "CORRAL_DATA_DIR": str(tmp_path / "data")}) as corral:
        child, _ = alone(corral)
        corral.running("api.app")[0].kill()
        until_said(child, ": started again")
        assert child.stop() == 0
        assert corral.left() == []
        again = corral.run("api", "--workers", "2", "--port", "0")
        until_said(again, "API: 2 processes on")
        again.send(signal.SIGKILL)
        again.wait()
        wait_for(lambda: not corral.left(), "the processes to die with their command")


def test_whichever_process_is_asked_tells_the_counters_of_all(tmp_path: Path, broker: Broker) -> None:
    with Corral(tmp_path, {"CORRAL_REDIS_URL": broker.url, "CORRAL_DATA_DIR": str(tmp_path / "data")}) as corral:
        _, url = alone(corral)
        for _ in range(SURE):  # on connections of their own, which the kernel spreads
            assert httpx.post(f"{url}/v1/messages", json={}, trust_env=False).status_code == 400
        line = re.compile(r'^corral_refusals_total{reason="bad_request"} (\S+)$', re.MULTILINE)
        told = [httpx.get(f"{url}/metrics", trust_env=False).text for _ in range(SURE)]
        assert [line.findall(one) for one in told] == [[str(float(SURE))]] * SURE
        assert all("corral_waited_in_vain_total 0.0" in one for one in told)
        assert not any("corral_engine_failures" in one for one in told), "a worker's, of which an API knows nothing"


def lives(url: str) -> bool:
    try:
        return httpx.get(f"{url}/live", trust_env=False).is_success
    except httpx.TransportError:
        return False
