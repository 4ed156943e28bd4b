"""What each of the places that tell figures says of one request.

Owns: asking the log, status, the page's stream, /metrics of the API and of workers, `why`, and a collector of traces.
Never: says what is right.
"""

import json
from collections.abc import Mapping
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from infra.observability import metrics
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for

OF_LIST = {"ago_ms", "api"}  # which process told of it, and when
LOG_ONLY = {"timestamp", "event", "part", "severity"}
Figures = dict[tuple[str, frozenset[tuple[str, str]]], float]


def line_of(cluster: Cluster, request_id: str) -> dict[str, Any]:
    """The fields of a request's log line."""
    line = cluster.wait_log(lambda one: one.get("event") == "request" and one.get("request_id") == request_id)
    return {name: value for name, value in line.items() if name not in LOG_ONLY}


def known(line: Mapping[str, Any]) -> dict[str, Any]:
    """Of its fields those that are known; a span cannot tell others."""
    return {name: value for name, value in line.items() if value is not None}


def status_of(cluster: Cluster, request_id: str) -> dict[str, Any]:
    """The request as /v1/status has it."""
    shown = cluster.http.get("/v1/status", params={"requests": "1"}).json()
    return _of_recent(shown, request_id)


def page_of(cluster: Cluster, request_id: str) -> dict[str, Any]:
    """The request as the page is told it."""
    with cluster.http.stream("GET", "/ui/events") as answer:
        line = next(line for line in answer.iter_lines() if line.startswith("data: "))
    return _of_recent(json.loads(line.removeprefix("data: ")), request_id)


def why_of(cluster: Cluster, request_id: str) -> dict[str, Any]:
    """Why its tokens were read again. It is kept a moment after the request has ended."""

    def asked() -> list[dict[str, Any]]:
        found = cluster.http.get(f"/v1/why/{request_id}")
        return list(found.json()["requests"]) if found.status_code == httpx.codes.OK else []

    [one] = wait_for(asked, f"the account of {request_id}")
    return one


def counted(address: str) -> Figures:
    """Sums and counts of /metrics that whoever does the work adds to; how the cluster stands is not among them."""
    told = httpx.get(f"{address}/metrics", trust_env=False, timeout=20)
    own = {family.name for registry in (metrics.API, metrics.WORKER) for family in registry.collect()}
    families = [family for family in text_string_to_metric_families(told.text) if family.name in own]
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in families
        for one in family.samples
        if not one.name.endswith("_bucket")
    }


def grown(before: Figures, after: Figures) -> Figures:
    """What is more than it was."""
    return {name: value - before.get(name, 0.0) for name, value in after.items() if value != before.get(name, 0.0)}


def _of_recent(shown: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    [one] = [one for one in shown["recent"] if one["request_id"] == request_id]
    return {name: value for name, value in one.items() if name not in OF_LIST}
