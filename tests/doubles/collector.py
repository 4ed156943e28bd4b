"""A collector of traces: OTLP over HTTP, as any of them takes it.

Owns: the spans that were sent to it, decoded with OpenTelemetry's own protocol files; and its bad days.
Never: a part of Corral.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.doubles.services import wait_for

SERVED_S = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One span. Times are in nanoseconds of the wall clock; `status` is a word for what went wrong, "" for nothing."""

    name: str
    trace: str
    id: str
    parent: str
    service: str
    begin_ns: int
    end_ns: int
    fields: dict[str, Any]
    failed: bool
    status: str
    links: tuple[str, ...]

    @property
    def took_ms(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e6


class Collector:
    """Takes what is sent to it; with `status` it answers with that instead, and while it is `stuck` with nothing."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.status = 200
        self.asked = 0
        self.stuck = threading.Event()
        self.freed = threading.Event()
        self._spans: list[Seen] = []

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for sent in request.resource_spans:
            about = {one.key: one.value.string_value for one in sent.resource.attributes}
            for scope in sent.scope_spans:
                self._spans += [_seen(span, about["service.name"]) for span in scope.spans]

    def spans(self, **fields: Any) -> list[Seen]:
        """Those that have come with these fields, by the time they began."""
        found = [one for one in self._spans if fields.items() <= one.fields.items()]
        return sorted(found, key=lambda one: one.begin_ns)

    def trace(self, trace: str) -> list[Seen]:
        return sorted((one for one in self._spans if one.trace == trace), key=lambda one: one.begin_ns)

    def wait_request(self, request_id: str) -> Seen:
        """The span of a request. Raises AssertionError when it does not come."""
        return wait_for(lambda: next(iter(self.spans(request_id=request_id)), None), f"the span of {request_id}")

    def wait_trace(self, trace: str, *names: str) -> dict[str, list[Seen]]:
        """The spans of a trace by name, once as many of each of `names` are there as are named."""
        wanted = {name: names.count(name) for name in names}
        wait_for(lambda: all(len(self._named(trace, name)) >= n for name, n in wanted.items()), f"{names} of a trace")
        return {name: self._named(trace, name) for name in {one.name for one in self.trace(trace)}}

    def _named(self, trace: str, name: str) -> list[Seen]:
        return [one for one in self.trace(trace) if one.name == name]


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    """A collector that runs inside the block, on a port that the machine chooses where none is given."""
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    server.daemon_threads = True
    server.block_on_close = False
    collector = Collector(server.server_address[1])
    server.collector = collector  # type: ignore[attr-defined]  # its handlers find it there
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collector
    finally:
        collector.freed.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = SERVED_S

    def do_POST(self) -> None:
        collector: Collector = self.server.collector  # type: ignore[attr-defined]
        collector.asked += 1
        body = self.rfile.read(int(self.headers["content-length"]))
        if collector.stuck.is_set():
            collector.freed.wait(SERVED_S)
            return
        good = self.path == "/v1/traces" and collector.status == 200
        if good:
            collector.take(body)
        self.send_response(collector.status if self.path == "/v1/traces" else 404)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is said of each batch."""


def _seen(span: Span, service: str) -> Seen:
    return Seen(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        service=service,
        begin_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        fields={one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes},
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        status=span.status.message,
        links=tuple(link.trace_id.hex() for link in span.links),
    )
