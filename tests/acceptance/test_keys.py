"""Who may ask: keys in both headers, no key in any log, and no open door without keys."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.conftest import running
from tests.acceptance.wire import body, user
from tests.doubles.cluster import Cluster
from tests.doubles.processes import base_environment, python
from tests.doubles.services import free_port

pytestmark = pytest.mark.acceptance

ANNA, BERT = "key-of-anna-5fb1c0", "key-of-bert-77ae93"
GOOD = body(user("say 3 words"))
COMMAND = "from infra.cli.main import main; main()"
GUARDED = ["/v1/models", "/v1/models/any", "/v1/status", "/metrics", "/ui/events"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"api_keys": f"anna:{ANNA},bert:{BERT}", "log_level": "debug"}
    with running(tmp_path_factory.mktemp("keys") / "0", workers=1, settings=settings) as cluster:
        yield cluster
        logs = [path for path in cluster.folder.rglob("*") if path.is_file()]
        assert [path for path in logs for key in (ANNA, BERT) if key.encode() in path.read_bytes()] == []


def ask(cluster: Cluster, headers: dict[str, str]) -> httpx.Response:
    return cluster.http.post("/v1/messages", json=GOOD, headers=headers)


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"x-api-key": ANNA}, "anna"),
        ({"authorization": f"Bearer {BERT}"}, "bert"),
        ({"authorization": f"bearer  {BERT}"}, "bert"),
        ({"x-api-key": "wrong", "authorization": f"Bearer {ANNA}"}, "anna"),
    ],
    ids=["x-api-key", "Bearer", "bearer", "one of two"],
)
def test_a_key_is_known_in_either_header(cluster: Cluster, headers: dict[str, str], name: str) -> None:
    answer = ask(cluster, headers)
    assert answer.status_code == 200
    line = cluster.wait_log(lambda line: line.get("request_id") == answer.headers["request-id"])
    assert (line["key"], line["agent"]) == (name, name)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-api-key": "wrong"},
        {"x-api-key": ""},
        {"x-api-key": ANNA[:-1]},
        {"x-api-key": f"anna:{ANNA}"},
        {"x-api-key": "k" * 10_000},
        {"authorization": f"Basic {ANNA}"},
        {"authorization": ANNA},
    ],
)
def test_whoever_has_no_key_is_refused_everywhere(cluster: Cluster, headers: dict[str, str]) -> None:
    answers = [ask(cluster, headers), cluster.http.post("/v1/messages/count_tokens", json=GOOD, headers=headers)]
    answers += [cluster.http.get(path, headers=headers) for path in GUARDED]
    for answer in answers:
        error = answer.json()
        assert (answer.status_code, error["error"]["type"]) == (401, "authentication_error")
        assert answer.headers["x-should-retry"] == "false"
        assert error["request_id"] == answer.headers["request-id"]


def test_a_bad_body_with_a_bad_key_hears_of_the_key_first(cluster: Cluster) -> None:
    answer = cluster.http.post("/v1/messages", content=b"{", headers={"x-api-key": "wrong"})
    assert answer.status_code == 401


@pytest.mark.parametrize("path", ["/", "/api/hello", "/live", "/ready", "/ui", "/ui/ui.js"])
def test_first_looks_need_no_key(cluster: Cluster, path: str) -> None:
    assert cluster.http.get(path).status_code == 200


def test_two_owners_of_keys_never_share_a_conversation(cluster: Cluster) -> None:
    lines = []
    for key in (ANNA, BERT):
        answer = ask(cluster, {"x-api-key": key, "x-claude-code-session-id": "same"})
        lines.append(cluster.wait_log(lambda line, a=answer: line.get("request_id") == a.headers["request-id"]))  # type: ignore[misc]
    assert lines[0]["conversation"] != lines[1]["conversation"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_open_address_without_keys_is_refused_in_one_sentence(broker_url: str, tmp_path: Path, host: str) -> None:
    settings = {"redis_url": broker_url, "data_dir": tmp_path, "port": free_port(), "host": host}
    environment = base_environment(tmp_path) | {f"CORRAL_{name.upper()}": str(v) for name, v in settings.items()}
    for command in (["-m", "api.app"], ["-c", COMMAND, "api", "--host", host]):
        done = subprocess.run(
            python(*command), env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode in {1, 2}
        said = (done.stdout + done.stderr).strip()
        assert "CORRAL_API_KEYS" in said
        assert "Traceback" not in said
        assert said.count("\n") <= 2
