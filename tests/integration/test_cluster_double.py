"""The helper that runs a whole cluster: it starts, serves, and leaves nothing behind."""

from pathlib import Path

import pytest

from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster
from tests.doubles.processes import marked

pytestmark = pytest.mark.integration


def test_a_cluster_serves_grows_shrinks_and_leaves_nothing(tmp_path: Path, broker: Broker) -> None:
    with Cluster(tmp_path, broker.url, workers=1, slots=2) as cluster:
        assert cluster.worker_states() == {"w1": "ready"}
        answer = cluster.messages("say 3 words")
        assert answer.status_code == 200, answer.text
        assert answer.json()["content"] == [{"type": "text", "text": "w1 w2 w3"}]
        assert [line["outcome"] for line in cluster.engine_requests("w1") if line["event"] == "request"][-1] == "done"
        cluster.add_worker("extra", decode_tokens_per_s=5)
        cluster.kill_worker("extra")
        cluster.wait_worker("extra", "gone")
        mark = cluster.mark
    assert marked(mark) == []
