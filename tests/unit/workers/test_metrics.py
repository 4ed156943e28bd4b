"""A worker's own /metrics: there where a port is set, gone with the worker, and a taken port is one sentence."""

import socket

import httpx
import pytest

from infra.config import Settings
from infra.errors import StartError
from infra.observability import metrics as counters
from tests.doubles.services import free_port
from workers import metrics

pytestmark = pytest.mark.unit


def test_counters_are_served_while_the_worker_lives() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    with metrics.served(Settings(metrics_port=port)):
        counters.ENGINE_FAILURES.inc()
        told = httpx.get(url, trust_env=False).text
        assert "corral_engine_failures_total" in told
        assert "corral_requests_total" not in told, "that is the gateway's to tell"
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)


def test_without_a_port_nothing_listens() -> None:
    with metrics.served(Settings()):
        pass


def test_a_taken_port_is_told_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = f"cannot listen on 127.0.0.1:{port}: .*; set another metrics_port"
        with pytest.raises(StartError, match=words), metrics.served(Settings(metrics_port=port)):
            pass
