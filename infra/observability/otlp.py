"""Traces made by OpenTelemetry and sent by OTLP over HTTP.

Owns: the spans of one process, the batches in which a thread of its own sends them, and one line a minute when they
cannot be sent. Neither a collector that is away nor a slow one is noticed by anything else: what waits is bounded, and
what is too much is dropped.
Never: says what a span tells (its callers do), or when one is made.

OpenTelemetry's own variables hold for what is not set here: OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER,
OTEL_RESOURCE_ATTRIBUTES, OTEL_BSP_MAX_QUEUE_SIZE.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

log = structlog.get_logger(__name__)
PATH = "/v1/traces"  # of OTLP over HTTP
EVERY_MS = 1000  # a process that is killed takes so much along
SEND_S = 5.0  # longest try to send one batch
CLOSE_S = 2.0
TOLD_EVERY_S = 60.0
NS = 1_000_000_000
SENDING = "opentelemetry.exporter"  # what logs there speaks of the collector
_propagator = TraceContextTextMapPropagator()


class OtlpTraces:
    """The traces of one process."""

    on = True

    def __init__(self, endpoint: str, part: str, name: str) -> None:
        address = endpoint.rstrip("/").removesuffix(PATH) + PATH
        about = {"service.name": f"corral-{part}", "service.instance.id": name, "service.version": version("corral")}
        self._ids = _Ids()
        self._provider = TracerProvider(
            resource=Resource.create(about), id_generator=self._ids, shutdown_on_exit=False
        )  # the end of the process would wait for a collector that is away
        self._exporter = _Exporter(OTLPSpanExporter(address, timeout=SEND_S), urlsplit(address).hostname or "")
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter, schedule_delay_millis=EVERY_MS))
        self._tracer = self._provider.get_tracer("corral")

    def begin(self, name: str, headers: Mapping[str, str]) -> "_Begun":
        """A client's request; only the W3C headers are looked at, and one that is no such header counts as none."""
        context = _propagator.extract(headers, Context())
        return _Begun(self._tracer, self._tracer.start_span(name, context, SpanKind.SERVER), _ahead_ns())

    def go_on(self, name: str, traceparent: str, span_id: str, begun_s: float) -> "_Begun":
        """A part of a job's trace, with an id that others know already."""
        ahead_ns, context = _ahead_ns(), _named(traceparent)
        self._ids.choose(span_id)
        began_ns = _ns(begun_s) + ahead_ns
        span = self._tracer.start_span(name, context, SpanKind.CONSUMER, start_time=began_ns)
        return _Begun(self._tracer, span, ahead_ns)

    def close(self) -> None:
        """Send what waits, for CLOSE_S at most."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            self._exporter.tell()


class _Begun:
    """A span that has begun, when the wall clock was so far ahead of the monotonic one."""

    def __init__(self, tracer: Tracer, span: Span, ahead_ns: int) -> None:
        self._ahead_ns = ahead_ns
        self._tracer = tracer
        self._span = span
        self._context = set_span_in_context(span, Context())

    @property
    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, self._context)
        return carrier.get("traceparent", "")

    def end(
        self,
        fields: Mapping[str, Any],
        stages: Sequence[tuple[str, float, float]] = (),
        *,
        failed: str = "",
        joined: str = "",
    ) -> None:
        span = self._span
        if not span.is_recording():  # whoever began the trace does not want it
            return
        span.set_attributes({name: value for name, value in fields.items() if isinstance(value, str | int | float)})
        if failed:
            span.set_status(StatusCode.ERROR, failed)
        if joined:
            span.add_link(get_current_span(_named(joined)).get_span_context())
        for name, begin_s, end_s in stages:
            child = self._tracer.start_span(name, self._context, start_time=_ns(begin_s) + self._ahead_ns)
            child.end(_ns(end_s) + self._ahead_ns)
        span.end()


class _Ids(RandomIdGenerator):
    """Ids by chance, but for a span whose id others know before it is made."""

    def __init__(self) -> None:
        self._chosen = threading.local()

    def choose(self, span_id: str) -> None:
        """The next span of this thread gets this id."""
        self._chosen.span_id = int(span_id, 16)

    def generate_span_id(self) -> int:
        chosen: int = getattr(self._chosen, "span_id", 0)
        self._chosen.span_id = 0
        return chosen or super().generate_span_id()


class _Exporter(SpanExporter):
    """Sends batches, and says once in a while what became of those that could not be sent."""

    def __init__(self, sending: SpanExporter, host: str) -> None:
        self._sending = sending
        self._host = host
        self._why = _Why()
        self._lost = 0
        self._next_s = 0.0
        of_library = logging.getLogger("opentelemetry")
        of_library.handlers, of_library.propagate = [self._why], False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._sending.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._lost += len(spans)
        if self._lost or self._why.full:
            self.tell()
        return result

    def tell(self) -> None:
        """Say that spans were lost, unless that was said just now."""
        if time.monotonic() < self._next_s:
            return
        known = {"spans": self._lost} if self._lost else {}  # nobody counts what is dropped while it waits
        log.warning("traces_not_sent", collector=self._host, **known, reason=self._why.words)
        self._next_s = time.monotonic() + TOLD_EVERY_S
        self._lost, self._why.full, self._why.status = 0, False, 0

    def shutdown(self) -> None:
        self._sending.shutdown()


class _Why(logging.Handler):
    """Hears what the library logs, a line for each try, and keeps what an operator needs of it."""

    full = False
    status = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.full = self.full or str(record.msg).startswith("Queue full")
        # Of a client's headers the library tells lengths, which are no status.
        arguments = record.args if isinstance(record.args, tuple) and record.name.startswith(SENDING) else ()
        self.status = next((one for one in arguments if isinstance(one, int) and one >= 400), self.status)  # noqa: PLR2004

    @property
    def words(self) -> str:
        if self.status:
            return f"the collector answered with HTTP status {self.status}; see trace_endpoint"
        if self.full:
            return "the collector is too slow: more spans came than it took, and the oldest were dropped"
        return "the collector could not be reached, or did not take them in time; see trace_endpoint"


def _named(traceparent: str) -> Context:
    return _propagator.extract({"traceparent": traceparent}, Context())


def _ahead_ns() -> int:
    return time.time_ns() - time.monotonic_ns()


def _ns(seconds: float) -> int:
    return int(seconds * NS)
