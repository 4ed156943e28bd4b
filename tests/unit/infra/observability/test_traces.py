"""Spans as a collector takes them, and what becomes of those that it does not take."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest
from structlog.testing import capture_logs

from infra.config import Settings
from infra.errors import ConfigError
from infra.observability.otlp import OtlpTraces
from infra.observability.traces import NO_SPAN, NO_TRACES, Stage, check, traces
from tests.doubles.collector import Collector, collecting

pytestmark = pytest.mark.unit
QUEUE = 2048  # OpenTelemetry's own bound
SENDERS = ("Otel", "traces")  # the library's thread and ours
PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def test_where_nobody_traces_every_call_gives_nothing() -> None:
    made = traces(Settings(), "api", "api")
    assert made is NO_TRACES
    span = made.begin("request", {"traceparent": PARENT})
    assert (span, made.go_on("attempt", PARENT, "c" * 16, 0.0)) == (NO_SPAN, NO_SPAN)
    span.end({"a": 1}, [Stage("queue", 0, 1)], failed="x", joined=PARENT)
    assert (span.traceparent, made.on) == ("", False)


def test_packages_that_are_missing_are_named_only_to_whom_wants_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    check(Settings())
    with pytest.raises(ConfigError, match=r"^trace_endpoint: .*pip install '\.\[traces\]'"):
        check(Settings(trace_endpoint="http://127.0.0.1:1"))


@pytest.mark.parametrize("path", ["", "/", "/v1/traces", "/v1/traces/"])
def test_a_span_is_told_with_its_fields_its_stages_and_the_id_that_was_chosen(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.observability.otlp.CLOSE_S", 60.0)
    with collecting() as collector:
        made = OtlpTraces(f"{collector.url}{path}", "worker", "w1")
        now_s = monotonic()
        span = made.go_on("attempt", PARENT, "c" * 16, now_s - 2)
        assert span.traceparent == f"00-{'a' * 32}-{'c' * 16}-01"
        span.end({"tokens": 7, "name": "x", "none": None}, [Stage("queue", now_s - 2, now_s - 1)], failed="lost")
        made.go_on("other", PARENT, "d" * 16, now_s).end({})
        made.close()
        told = {one.name: one for one in collector.trace("a" * 32)}
    assert set(told) == {"attempt", "queue", "other"}
    attempt, queue = told["attempt"], told["queue"]
    assert (attempt.id, attempt.parent, queue.parent, told["other"].id) == ("c" * 16, "b" * 16, "c" * 16, "d" * 16)
    assert queue.id not in ("c" * 16, "d" * 16)
    assert (attempt.fields, attempt.failed, attempt.status) == ({"tokens": 7, "name": "x"}, True, "lost")
    assert queue.begin_ns == attempt.begin_ns
    assert queue.took_ms == pytest.approx(1000, abs=0.01)


@contextmanager
def recovering() -> Iterator[Collector]:
    """A collector that is well when the test is over, until all who send to it have ended: they log what goes wrong,
    and would do so into the next tests."""
    with collecting() as collector:
        yield collector
        collector.status = 200
        collector.stuck.clear()
        collector.freed.set()
        for thread in threading.enumerate():
            if thread.name.startswith(SENDERS):
                thread.join(60)
                assert not thread.is_alive()


@pytest.mark.parametrize(("status", "words"), [(400, "HTTP status 400"), (503, "did not take them in time")])
def test_what_a_collector_does_not_take_is_told_once(status: int, words: str) -> None:
    """One that is busy is asked again; the end does not wait for it."""
    with recovering() as collector, capture_logs() as logged:
        collector.status = status
        made = OtlpTraces(collector.url, "api", "api")
        for _ in range(3):
            made.begin("request", {}).end({})
        made.close()
        made.close()
    [line] = [one for one in logged if one["event"] == "traces_not_sent"]
    assert words in line["reason"]


def test_what_a_client_sends_is_not_taken_for_what_the_collector_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.observability.otlp.CLOSE_S", 0.1)
    with recovering() as collector, capture_logs() as logged:
        collector.status = 503
        made = OtlpTraces(collector.url, "api", "api")
        made.begin("request", {"traceparent": "x" * 5000}).end({})
        made.begin("request", {"traceparent": PARENT, "tracestate": "x" * 50_000}).end({})
        made.close()
    [line] = [one for one in logged if one["event"] == "traces_not_sent"]
    assert "could not be reached" in line["reason"]


def test_a_collector_that_hangs_holds_up_neither_spans_nor_the_end() -> None:
    """As many wait as may; more are dropped."""
    with recovering() as collector:
        collector.stuck.set()
        made = OtlpTraces(collector.url, "api", "api")
        ended = threading.Event()

        def much() -> None:
            for _ in range(3 * QUEUE):
                made.begin("request", {}).end({"a": 1})
            made.close()
            ended.set()

        threading.Thread(target=much, daemon=True).start()
        assert ended.wait(60)
        assert collector.asked == 1


def test_where_nobody_knows_how_many_were_lost_no_number_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.observability.otlp.CLOSE_S", 0.1)
    with recovering() as collector, capture_logs() as logged:
        collector.stuck.set()
        made = OtlpTraces(collector.url, "api", "api")
        made.begin("request", {}).end({})
        made.close()
    [line] = [one for one in logged if one["event"] == "traces_not_sent"]
    assert line.get("spans") != 0


def test_a_trace_that_its_client_does_not_keep_is_not_sent() -> None:
    with collecting() as collector:
        made = OtlpTraces(collector.url, "api", "api")
        span = made.begin("request", {"traceparent": PARENT[:-2] + "00"})
        assert span.traceparent.startswith(f"00-{'a' * 32}-")
        assert int(span.traceparent[-2:], 16) & 1 == 0
        span.end({"a": 1}, [Stage("queue", 0, 1)])
        made.close()
        assert collector.spans() == []
