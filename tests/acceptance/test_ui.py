"""The page that shows the cluster: its files, and the snapshots that it draws."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import running
from tests.acceptance.wire import occupied, waiting
from tests.doubles.cluster import Cluster

pytestmark = pytest.mark.acceptance
WHO = {"x-agent-id": "reviewer", "x-priority": "2"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("ui") / "0", workers=1, slots=2) as cluster:
        yield cluster


def snapshots(cluster: Cluster, url: str = "") -> Iterator[dict[str, Any]]:
    with cluster.http.stream("GET", f"{url}/ui/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize(("path", "kind"), [("/ui", "html"), ("/ui/ui.css", "css"), ("/ui/ui.js", "javascript")])
def test_the_page_is_whole_and_runs_nobody_elses_script(cluster: Cluster, path: str, kind: str) -> None:
    answer = cluster.http.get(path)
    assert (answer.status_code, kind in answer.headers["content-type"]) == (200, True)
    policy = answer.headers["content-security-policy"]
    for part in ("default-src", "base-uri", "frame-ancestors", "form-action"):
        assert f"{part} 'none'" in policy
    assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", ""), "it works without the internet"
    assert "https://" not in answer.text
    assert "innerHTML" not in answer.text, "text of a cluster is never markup"


def test_whoever_asks_for_its_head_hears_that_it_is_there(cluster: Cluster) -> None:
    answer = cluster.http.head("/ui")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("path", ["/ui/app.py", "/ui/..%2Fapp.py", "/ui/ui.html.bak"])
def test_nothing_else_is_served(cluster: Cluster, path: str) -> None:
    answer = cluster.http.get(path)
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


def test_a_snapshot_has_what_status_says_and_the_line_of_each_request(cluster: Cluster) -> None:
    answer = cluster.messages("say 3 words", headers=WHO)
    line = cluster.wait_log(lambda one: one.get("request_id") == answer.headers["request-id"])
    shown = next(snapshots(cluster))
    assert set(cluster.status()) <= set(shown)
    newest = shown["recent"][0]
    told = {"ago_ms": newest["ago_ms"], "api": shown["api"]}
    assert newest == told | {name: line[name] for name in newest if name not in told}
    assert newest["agent"] == "reviewer"


def test_a_running_answer_is_there_with_its_speed_until_it_ends(cluster: Cluster) -> None:
    with occupied(cluster, 1):
        for shown in snapshots(cluster):
            if shown["running"] and shown["running"][0].get("per_s"):
                break
        [one] = shown["running"]
        assert (one["worker"], one["slot"] in (0, 1)) == ("w1", True)
        assert one["told"] > 0
        assert one["per_s"] > 0
        assert one["took_ms"] > 0
    for shown in snapshots(cluster):
        if not shown["running"]:
            break


def test_whichever_of_several_gateways_is_asked_it_shows_the_requests_of_all(tmp_path: Path) -> None:
    with running(tmp_path / "0", workers=1, slots=2, api_count=2) as cluster:
        with occupied(cluster, 1):
            asked = snapshots(cluster, cluster.urls[1])
            shown = next(one for one in asked if one["running"])
        assert [(one["agent"], one["api"]) for one in shown["running"]] == [("occupant-0", "api-0")]
        assert (shown["api"], shown["apis"], shown["apis_silent"]) == ("api-1", ["api-0", "api-1"], 0)
        ended = next(one for one in snapshots(cluster, cluster.urls[1]) if one["recent"])
        assert [(one["agent"], one["api"]) for one in ended["recent"]] == [("occupant-0", "api-0")]


def test_the_line_of_a_worker_that_died_is_told(tmp_path: Path) -> None:
    with running(tmp_path / "0", workers=1, slots=1) as cluster, occupied(cluster, 1), waiting(cluster):
        cluster.kill_worker("w1")
        shown = next(one for one in snapshots(cluster) if one["lost"])
        assert [(one["name"], sum(one["queued"]) + one["running"]) for one in shown["lost"]] == [("w1", 2)]
        assert shown["waiting"] == sum(shown["lost"][0]["queued"])
        metrics = cluster.http.get("/metrics").text
        assert "corral_lost_workers 1.0" in metrics
        assert 'corral_queue_jobs{level="5",worker="w1"}' in metrics
