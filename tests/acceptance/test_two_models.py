"""Two models behind one gateway: the name asked for decides, any other name means the first."""

from collections.abc import Iterator

import pytest

from tests.acceptance.conftest import running
from tests.acceptance.wire import body, user
from tests.doubles.cluster import Cluster

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """w1 serves anthropic-alpha, w2 anthropic-beta."""
    folder = tmp_path_factory.mktemp("models") / "0"
    with running(folder, workers=1, settings={"model_name": "alpha"}) as cluster:
        cluster.add_worker("w2", settings={"model_name": "beta"})
        yield cluster


def worker_of(cluster: Cluster, model: str, agent: str) -> str:
    answer = cluster.messages("say 1 words", model=model, headers={"x-agent-id": agent})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return str(answer.headers["x-corral-worker"])


@pytest.mark.parametrize(
    ("model", "worker"), [("anthropic-alpha", "w1"), ("anthropic-beta", "w2"), ("claude-opus", "w1")]
)
def test_a_request_goes_to_a_worker_of_its_model(pair: Cluster, model: str, worker: str) -> None:
    assert {worker_of(pair, model, f"{model}-{number}") for number in range(8)} == {worker}


def test_a_conversation_that_changes_its_model_leaves_its_home(pair: Cluster) -> None:
    models = ["anthropic-alpha", "anthropic-beta", "anthropic-alpha"]
    assert [worker_of(pair, model, "one") for model in models] == ["w1", "w2", "w1"]


def test_both_models_are_listed_and_counted_by_their_own_workers(pair: Cluster) -> None:
    models = [model["id"] for model in pair.http.get("/v1/models").json()["data"]]
    assert models == ["anthropic-alpha", "anthropic-beta"]
    for model in models:
        counted = pair.http.post("/v1/messages/count_tokens", json=body(user("a b c"), model=model)).json()
        assert list(counted) == ["input_tokens"]


def test_a_model_whose_only_worker_has_gone_means_the_first_again(pair: Cluster) -> None:
    pair.stop_worker("w2")
    pair.wait_worker("w2", "gone")
    assert worker_of(pair, "anthropic-beta", "late") == "w1"
