"""A worker's own /metrics, for Prometheus.

Owns: the port that serves the counters of this process, where one is set.
Never: counts anything; whoever does something counts it (`infra.observability.metrics`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import start_http_server

from infra.config import Settings
from infra.errors import StartError
from infra.observability import metrics

STOP_S = 5.0


@contextmanager
def served(settings: Settings) -> Iterator[None]:
    """They can be read inside the block. Raises StartError when the port is taken."""
    if not settings.metrics_port:
        yield
        return
    where = f"{settings.metrics_host}:{settings.metrics_port}"
    try:
        server, thread = start_http_server(settings.metrics_port, settings.metrics_host, metrics.WORKER)
    except OSError as error:
        raise StartError("metrics", f"cannot listen on {where}: {error.strerror}; set another metrics_port") from error
    try:
        yield
    finally:
        server.shutdown()
        thread.join(STOP_S)
        server.server_close()
