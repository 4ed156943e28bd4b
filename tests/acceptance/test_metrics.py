"""What Prometheus is told is what the log line of each request says, with few labels."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from infra.observability import metrics
from tests.acceptance.conftest import StartCluster, running
from tests.acceptance.wire import occupied, waiting
from tests.doubles import scripted_model
from tests.doubles.cluster import Cluster
from tests.doubles.scripted_model import Script
from tests.doubles.services import wait_for

pytestmark = pytest.mark.acceptance
AGENT = "reviewer-whose-name-is-nowhere-else"
WHO = {"x-agent-id": AGENT, "x-priority": "2"}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("metrics") / "0", workers=1, slots=1) as cluster:
        yield cluster


def scraped(cluster: Cluster) -> Samples:
    told = cluster.http.get("/metrics")
    assert told.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(told.text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    """The sum of all samples of that name that have these labels."""
    wanted = set(labels.items())
    return sum(number for (at, has), number in samples.items() if at == f"corral_{name}" and wanted <= has)


def line_of(cluster: Cluster, request_id: str) -> dict[str, Any]:
    return cluster.wait_log(lambda line: line.get("event") == "request" and line.get("request_id") == request_id)


def test_all_numbers_of_a_request_are_those_of_its_log_line(cluster: Cluster) -> None:
    where = {"worker": "w1", "kind": "main"}
    before = scraped(cluster)
    answer = cluster.messages("say 3 words", headers=WHO, stream=True)
    line, after = line_of(cluster, answer.headers["request-id"]), scraped(cluster)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert grown("requests_total", **where, model=line["model"], level="2", outcome="done") == 1
    assert grown("queue_seconds_count", worker="w1", level="2") == 1
    for name, field in (("first_token", "first_ms"), ("prefill", "prefill_ms"), ("decode", "decode_ms")):
        assert grown(f"{name}_seconds_count", **where) == 1
        assert grown(f"{name}_seconds_sum", **where) == pytest.approx(line[field] / 1000)
    assert grown("request_seconds_sum", **where) == pytest.approx(line["took_ms"] / 1000)
    for part, field in (("prompt", "prompt_tokens"), ("cached", "cached_tokens"), ("output", "output_tokens")):
        assert grown("tokens_total", **where, part=part) == line[field]
    assert grown("cache_sources_total", worker="w1", source=line["source"]) == 1
    assert grown("placements_total", worker="w1") == 1
    assert line["first_ms"] <= line["took_ms"]
    assert grown("retries_total") == grown("continued_answers_total") == 0


def test_a_refusal_is_counted_by_its_reason(cluster: Cluster) -> None:
    before = scraped(cluster)
    answer = cluster.messages("x", max_tokens=-1)
    line_of(cluster, answer.headers["request-id"])
    after = scraped(cluster)
    for name, labels in (("refusals_total", {"reason": "bad_request"}), ("requests_total", {"outcome": "failed"})):
        assert value(after, name, **labels) - value(before, name, **labels) == 1


def test_the_cluster_is_shown_as_it_stands(cluster: Cluster) -> None:
    at_rest = scraped(cluster)
    assert value(at_rest, "worker_state", worker="w1", state="ready") == 1
    assert value(at_rest, "worker_state", worker="w1") == 1
    assert (value(at_rest, "slots", worker="w1"), value(at_rest, "broker_up")) == (1, 1)
    assert value(at_rest, "engine_memory_bytes", worker="w1") > 1_000_000
    assert value(at_rest, "model_info", worker="w1") == value(at_rest, "build_info") == 1
    with occupied(cluster, 1), waiting(cluster):
        wait_for(lambda: value(scraped(cluster), "queue_jobs", worker="w1") == 1, "a job in its line")
        assert value(scraped(cluster), "running_jobs", worker="w1") == 1


def test_a_slot_that_changes_hands_is_counted_without_a_port_of_the_workers_own(cluster: Cluster) -> None:
    before = value(scraped(cluster), "worker_evictions_total", worker="w1")
    for agent in ("one", "another"):
        cluster.messages("say 3 words", headers={"x-agent-id": agent})
    wait_for(lambda: value(scraped(cluster), "worker_evictions_total", worker="w1") >= before + 1, "an eviction")


def test_what_a_real_engine_guessed_and_what_of_it_was_right_is_told(
    start_cluster: StartCluster, model_path: Callable[[Script], Path]
) -> None:
    """The prompt holds the words of the answer, so whoever guesses from what was said before is right."""
    model, settings = model_path(scripted_model.long_text(200)), {"engine_args": "--spec-type ngram-simple"}
    cluster = start_cluster(workers=1, slots=1, context_tokens=2048, engine="embedded", model=model, settings=settings)
    answer = cluster.messages(" ".join(f"step{number:04}" for number in range(1, 201)), max_tokens=200).json()
    assert answer["usage"]["output_tokens"] == 200

    def told() -> Samples | None:
        found = scraped(cluster)
        return found if value(found, "worker_drafted_tokens_total", worker="w1") else None

    found = wait_for(told, "the worker to tell of its guesses")
    drafted, right = (
        value(found, f"worker_{name}_tokens_total", worker="w1") for name in ("drafted", "accepted_draft")
    )
    assert 100 < right <= drafted < 400


def test_labels_are_few_and_name_no_agent(cluster: Cluster) -> None:
    cluster.messages("say 3 words", headers=WHO)
    samples = scraped(cluster)
    assert AGENT not in str(samples)
    allowed = {*metrics.WHERE, "level", "outcome", "reason", "part", "source", "state", "cause", "quantile", "le"}
    allowed |= {"hash", "engine", "version"}
    assert {name for (metric, labels) in samples for name, _ in labels if metric.startswith("corral_")} <= allowed
