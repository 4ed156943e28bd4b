"""One trace a request, over API, queue, worker and engine, as a collector of traces is told it."""

import secrets
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.conftest import StartCluster, running
from tests.acceptance.wire import body, events_of, text_of, user
from tests.doubles.cluster import Cluster, json_lines
from tests.doubles.collector import Collector, collecting
from tests.doubles.processes import Child, base_environment, python
from tests.doubles.services import free_port, wait_for

pytestmark = pytest.mark.acceptance
WHO = {"x-agent-id": "reviewer", "x-priority": "2"}
STAGES = ("queue", "prefill", "decode")


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Cluster]:
    """Two workers; the store is off, so that only what a slot holds is found again."""
    settings = {"trace_endpoint": collector.url, "store_dir": "off"}
    with running(tmp_path_factory.mktemp("traces") / "0", workers=2, slots=2, settings=settings) as cluster:
        yield cluster


def line_of(cluster: Cluster, request_id: str) -> dict[str, Any]:
    return cluster.wait_log(lambda line: line.get("event") == "request" and line.get("request_id") == request_id)


def as_told(line: dict[str, Any]) -> dict[str, Any]:
    """A log line as a span can tell it: what is unknown is not there."""
    own = {"timestamp", "event", "part", "severity"}
    return {name: value for name, value in line.items() if name not in own and value is not None}


def told(cluster: Cluster, trace: str, *, sampled: bool = True) -> list[str]:
    """The spans of a trace for which engines were asked, each with the flag that says whether it is kept."""
    asked = [one.get("traceparent", "") for name in ("w1", "w2") for one in cluster.engine_requests(name)]
    parts = [one.split("-") for one in asked if one[3:35] == trace]
    assert all(bool(int(flags, 16) & 1) is sampled for *_, flags in parts)
    return [span for _, _, span, _ in parts]


def traceparent(flags: str = "01") -> tuple[str, str, str]:
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return f"00-{trace}-{span}-{flags}", trace, span


@pytest.mark.parametrize("stream", [True, False])
def test_the_spans_of_a_request_are_one_trace_with_the_figures_of_its_log_line(
    cluster: Cluster, collector: Collector, stream: bool
) -> None:
    answer = cluster.messages("say 9 words at 100 tokens/s", headers=WHO, stream=stream)
    line = line_of(cluster, answer.headers["request-id"])
    request = collector.wait_request(line["request_id"])
    spans = collector.wait_trace(request.trace, "request", "attempt", *STAGES)
    [attempt] = spans["attempt"]
    assert set(spans) == {"request", "attempt", *STAGES}
    assert (request.parent, attempt.parent) == ("", request.id)
    assert {one.parent for name in STAGES for one in spans[name]} == {attempt.id}
    assert (request.service, attempt.service) == ("corral-api", "corral-worker")
    assert request.fields == as_told(line)
    assert attempt.fields == {name: line[name] for name in attempt.fields}
    assert {*("job", "agent", "level", "worker", "slot", "queue_ms", "cached_tokens")} <= set(attempt.fields)
    assert not request.failed
    assert not attempt.failed
    for name in STAGES:
        assert spans[name][0].took_ms == pytest.approx(line[f"{name}_ms"], abs=0.01)
    assert attempt.begin_ns == spans["queue"][0].begin_ns
    ends = [one.end_ns for name in STAGES for one in spans[name]]
    assert max(ends) <= attempt.end_ns


def test_the_engine_is_told_which_attempt_it_works_for(cluster: Cluster, collector: Collector) -> None:
    answer = cluster.messages("say 2 words", headers=WHO)
    request = collector.wait_request(answer.headers["request-id"])
    [attempt] = collector.wait_trace(request.trace, "attempt")["attempt"]
    assert told(cluster, request.trace) == [attempt.id]


def test_a_trace_that_a_client_began_goes_on(cluster: Cluster, collector: Collector) -> None:
    header, trace, span = traceparent()
    answer = cluster.messages("say 2 words", headers={**WHO, "traceparent": header})
    request = collector.wait_request(answer.headers["request-id"])
    assert (request.trace, request.parent) == (trace, span)
    [attempt] = collector.wait_trace(trace, "attempt")["attempt"]
    assert attempt.parent == request.id


@pytest.mark.parametrize("header", ["", "00-0-0-01", "ff-" + "1" * 32 + "-" + "2" * 16 + "-01", "x" * 5000])
def test_what_is_no_traceparent_counts_as_none(cluster: Cluster, collector: Collector, header: str) -> None:
    answer = cluster.messages("say 2 words", headers={**WHO, "traceparent": header})
    request = collector.wait_request(answer.headers["request-id"])
    assert request.parent == ""
    assert request.trace not in ("1" * 32, "0" * 32)


def test_a_trace_that_its_client_does_not_keep_is_not_sent_and_the_engine_hears_that(
    cluster: Cluster, collector: Collector
) -> None:
    header, trace, _ = traceparent(flags="00")
    cluster.messages("say 2 words", headers={**WHO, "traceparent": header})
    kept = cluster.messages("say 2 words", headers=WHO)  # sent after it
    for name in ("request", "attempt"):
        collector.wait_trace(collector.wait_request(kept.headers["request-id"]).trace, name)
    assert collector.trace(trace) == []
    assert len(told(cluster, trace, sampled=False)) == 1


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [({"max_tokens": -1}, 400, "bad_request"), ({"text": "fail 500"}, 500, "engine_refused")],
    ids=["refused by the API", "failed at the engine"],
)
def test_what_went_wrong_is_said_by_its_code(
    cluster: Cluster, collector: Collector, fields: dict[str, Any], status: int, reason: str
) -> None:
    fields = dict(fields)
    answer = cluster.messages(fields.pop("text", "x"), headers=WHO, **fields)
    assert answer.status_code == status
    request = collector.wait_request(answer.headers["request-id"])
    assert (request.failed, request.status, request.fields["reason"]) == (True, reason, reason)
    assert request.fields == as_told(line_of(cluster, answer.headers["request-id"]))
    if status == 500:
        [attempt] = collector.wait_trace(request.trace, "attempt")["attempt"]
        assert (attempt.failed, attempt.status, attempt.fields["outcome"]) == (True, reason, "failed")


def test_a_request_that_is_given_another_s_answer_names_that_one_s_trace(
    cluster: Cluster, collector: Collector
) -> None:
    def ask(_: int) -> httpx.Response:
        return cluster.messages("say 20 words at 20 tokens/s", headers=WHO, temperature=0)

    with ThreadPoolExecutor(2) as pool:
        ids = [answer.headers["request-id"] for answer in pool.map(ask, range(2))]
    spans = [collector.wait_request(one) for one in ids]
    [own, joined] = sorted(spans, key=lambda one: one.fields["shared"])
    assert (own.fields["shared"], joined.fields["shared"]) == (False, True)
    assert (own.links, joined.links) == ((), (own.trace,))
    assert own.fields["job"] == joined.fields["job"]


def test_each_attempt_at_an_answer_is_told_also_one_that_died_with_its_worker(
    cluster: Cluster, collector: Collector
) -> None:
    request = body(user("say 60 words at 20 tokens/s"), stream=True)
    lines: list[str] = []
    with cluster.http.stream("POST", "/v1/messages", json=request, headers=WHO, timeout=60) as answer:
        first = answer.headers["x-corral-worker"]
        for said in answer.iter_lines():
            lines.append(said)
            if lines.count("event: content_block_delta") == 5 and first not in cluster.stopped:
                cluster.kill_worker(first)
    assert len(text_of(events_of(lines)).split()) == 60
    line = line_of(cluster, answer.headers["request-id"])
    assert (line["attempt"], line["continued"]) == (2, True)
    whole = collector.wait_request(line["request_id"])
    spans = collector.wait_trace(whole.trace, "request", "attempt", "attempt", "queue", "queue", "decode")
    lost, last = spans["attempt"]
    assert (lost.parent, last.parent) == (whole.id, whole.id)
    assert (lost.fields["outcome"], lost.fields["attempt"], lost.fields["worker"]) == ("lost", 1, first)
    assert (lost.failed, lost.status) == (True, "worker_lost")
    assert (last.fields["outcome"], last.failed) == ("done", False)
    assert last.fields == {name: line[name] for name in last.fields}
    assert whole.fields == as_told(line)
    again = spans["queue"][1]
    assert again.begin_ns >= lost.begin_ns + spans["queue"][0].took_ms * 1e6, "the second wait began after the first"
    assert again.took_ms < (again.end_ns - lost.begin_ns) / 1e6
    assert last.id in told(cluster, whole.trace)
    cluster.start_worker(first)
    cluster.wait_ready(2)


# --- a collector that has a bad day -----------------------------------------------------------------------------------


def not_sent(path: Path) -> list[dict[str, Any]]:
    return [line for line in json_lines(path) if line.get("event") == "traces_not_sent"]


@pytest.mark.parametrize(("day", "words"), [("away", "could not be reached"), ("stuck", "")])
def test_a_collector_s_bad_day_hurts_no_request_and_keeps_no_part_from_ending(
    start_cluster: StartCluster, day: str, words: str
) -> None:
    with collecting() as collector:
        if day == "stuck":
            collector.stuck.set()
        url = f"http://127.0.0.1:{free_port()}" if day == "away" else collector.url
        cluster = start_cluster(workers=1, slots=2, settings={"trace_endpoint": url, "drain_s": 1})
        answers = [cluster.messages("say 3 words", headers=WHO) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200] * 5
        logs = [cluster.apis[0].log, cluster.workers["w1"].log]
        if words:
            [line] = wait_for(lambda: not_sent(logs[0]), "a line that says so")
            assert words in line["reason"]
            assert line["spans"] > 0
        assert cluster.stop_worker("w1") == 0
        assert cluster.apis[0].stop(signal.SIGTERM) == 0
        cluster.stopped.add("api0")
        for log in logs:
            assert len(not_sent(log)) <= 1
            assert "Traceback" not in log.read_text()


# --- the settings -----------------------------------------------------------------------------------------------------


def test_without_an_address_nothing_that_makes_or_sends_traces_is_loaded(tmp_path: Path) -> None:
    """FastAPI and the client of Redis load parts of OpenTelemetry by themselves where it is there."""
    code = (
        "import sys; from infra.config import Settings; from api.app import create_app; import workers.app; "
        "from infra.observability.traces import NO_TRACES, traces; create_app(Settings()); "
        "assert traces(Settings(), 'worker', 'w1') is NO_TRACES; "
        "ours = ('opentelemetry.exporter', 'infra.observability.otlp'); "
        "print([name for name in sys.modules if name.startswith(ours)])"
    )
    child = Child(python("-c", code), tmp_path / "log", base_environment(tmp_path), tmp_path)
    assert child.wait() == 0
    assert child.log.read_text().strip() == "[]"


@pytest.mark.parametrize("module", ["api.app", "workers.app"])
def test_a_missing_package_is_named_with_the_setting_and_the_way_to_get_it(tmp_path: Path, module: str) -> None:
    """The package is hidden as if it were not there."""
    code = f"import sys; sys.modules['opentelemetry.exporter'] = None; import {module} as m; sys.exit(m.main())"
    settings = {"CORRAL_TRACE_ENDPOINT": "http://127.0.0.1:1", "CORRAL_REDIS_URL": "redis://127.0.0.1:1/0"}
    child = Child(python("-c", code), tmp_path / "log", base_environment(tmp_path) | settings, tmp_path)
    assert child.wait() == 1
    said = child.log.read_text().strip().splitlines()[-1]
    assert said.startswith("error: trace_endpoint: ")
    assert "pip install '.[traces]'" in said
