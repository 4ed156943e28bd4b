"""Real Claude Code on the real engine: every cache miss is explained, and the explanations are true.

Three agents with subagents, five turns each, on one worker: one goes on, one changes tools and model, one compacts and
clears. What each did is known here, so what `corral why` says of it can be judged.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import WINDOW_TOKENS, running
from tests.doubles import scripted_model as scripts
from tests.doubles.claude import ClaudeCode, find_or_install
from tests.doubles.cluster import Cluster
from tests.doubles.corral import Corral, said
from tests.doubles.scripted_model import Script
from tests.doubles.services import wait_for

pytestmark = pytest.mark.acceptance

Account = dict[str, Any]

FEW_TOOLS = ("--tools", "Bash,Agent")  # a prompt of 5,000 tokens instead of 28,000
MORE_TOOLS = ("--tools", "Bash,Agent,Read")
OTHER_MODEL = (*MORE_TOOLS, "--model", "claude-haiku-4-5")
ON = "--continue"

# The runs of each agent after the first, and the causes of all its requests in order. A first run asks three times: the
# main line, its subagent, and the main line with what the subagent said. Claude Code itself puts other system text and
# tools into a session that goes on for the first time (tried with 2.1.197).
BEGIN = [("main", "first_turn"), ("subagent", "first_turn"), ("main", "none")]
GOES_ON = [*BEGIN, ("main", "tools_changed"), *[("main", "none")] * 3]
CHANGES = [*BEGIN, ("main", "tools_changed"), ("main", "tools_changed"), ("main", "model_changed"), ("main", "none")]
COMPACTS = [
    *BEGIN,
    ("main", "tools_changed"),
    ("main", "none"),  # the compaction itself
    ("main", "compaction"),  # the turn after it: with the tool result gone the script begins anew
    *BEGIN[1:],
    *BEGIN,  # a cleared session
]
RUNS: dict[str, list[tuple[str, ...]]] = {
    "goes-on": [("two", ON, *FEW_TOOLS), ("three", ON, *FEW_TOOLS), ("four", ON, *FEW_TOOLS), ("five", ON, *FEW_TOOLS)],
    "changes": [
        ("two", ON, *FEW_TOOLS),
        ("three", ON, *MORE_TOOLS),
        ("four", ON, *OTHER_MODEL),
        ("five", ON, *OTHER_MODEL),
    ],
    "compacts": [
        ("two", ON, *FEW_TOOLS),
        ("/compact", ON, *FEW_TOOLS),
        ("three", ON, *FEW_TOOLS),
        ("/clear", ON, *FEW_TOOLS),
        ("four", ON, *FEW_TOOLS),
    ],
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, model_path: Callable[[Script], Path]) -> Iterator[Cluster]:
    """One worker with room for every conversation, on which the three agents have done their work."""
    folder = tmp_path_factory.mktemp("why")
    options = {"engine": "embedded", "context_tokens": WINDOW_TOKENS, "workers": 1, "slots": 16}
    with running(folder / "0", model=model_path(scripts.SUBAGENT), **options) as cluster:
        claude = ClaudeCode(find_or_install(), folder / "claude")
        with ThreadPoolExecutor(len(RUNS)) as pool:
            list(pool.map(lambda agent: work(claude, cluster, agent), RUNS))
        wait_for(lambda: len(answered(cluster)) == len([*GOES_ON, *CHANGES, *COMPACTS]), "all log lines")
        yield cluster


def work(claude: ClaudeCode, cluster: Cluster, agent: str) -> None:
    for prompt, *arguments in [("Please begin.", *FEW_TOOLS), *RUNS[agent]]:
        tools = ("Agent", "Task", "Bash", "Read")
        outcome = claude.run(
            prompt, url=cluster.url, agent=agent, workspace=agent, arguments=arguments, allowed_tools=tools
        )
        assert outcome.status == 0, outcome.stdout[-2000:]


def answered(cluster: Cluster, agent: str = "") -> list[dict[str, Any]]:
    """The log lines of the requests that were answered, in order."""
    lines = [line for line in cluster.log_lines() if line.get("event") == "request" and line["outcome"] == "done"]
    return [line for line in lines if agent in ("", line["agent"])]


@pytest.fixture(scope="module")
def told(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Account]]:
    """What `corral why AGENT` says of each agent, oldest first."""
    with Corral(tmp_path_factory.mktemp("told")) as corral:
        said_of = {agent: json.loads(asked(corral, cluster, agent, "--json"))["requests"] for agent in RUNS}
    return {agent: list(reversed(found)) for agent, found in said_of.items()}


def asked(corral: Corral, cluster: Cluster, *arguments: str) -> str:
    """What `corral why` prints."""
    child = corral.run("why", *arguments, "--url", cluster.url)
    assert child.wait() == 0, said(child)
    return said(child)


@pytest.mark.parametrize(("agent", "expected"), [("goes-on", GOES_ON), ("changes", CHANGES), ("compacts", COMPACTS)])
def test_every_turn_is_explained_by_what_its_agent_did(
    cluster: Cluster, told: dict[str, list[Account]], agent: str, expected: list[tuple[str, str]]
) -> None:
    lines = answered(cluster, agent)
    assert [(account["kind"], account["cause"]) for account in told[agent]] == expected
    assert [account["request"] for account in told[agent]] == [line["request_id"] for line in lines]
    assert [line["miss"] for line in lines] == [cause for _, cause in expected]


@pytest.mark.parametrize("agent", RUNS)
def test_the_numbers_are_those_of_the_turn_before_it(
    cluster: Cluster, told: dict[str, list[Account]], agent: str
) -> None:
    lines = {line["request_id"]: line for line in answered(cluster, agent)}
    for account in told[agent]:
        line = lines[account["request"]]
        before = lines.get(account["compared_with"])
        assert (account["prompt_tokens"], account["cached_tokens"]) == (line["prompt_tokens"], line["cached_tokens"])
        if account["cause"] == "first_turn":
            assert account["lost_tokens"] == 0
            continue
        assert before is not None
        held = before["prompt_tokens"] + before["output_tokens"]
        if account["cause"] == "compaction":  # what it replaced could not be found
            assert account["reuse_expected_tokens"] < min(held, line["prompt_tokens"] - 1)
        else:
            assert account["reuse_expected_tokens"] == min(held, line["prompt_tokens"] - 1)
        assert account["lost_tokens"] == max(0, account["reuse_expected_tokens"] - line["cached_tokens"])
        assert 0 <= account["lost_ms"] <= line["prefill_ms"]


@pytest.mark.parametrize("agent", RUNS)
def test_a_changed_prefix_is_another_conversation_and_nothing_else_is(
    told: dict[str, list[Account]], agent: str
) -> None:
    for before, after in pairwise(account for account in told[agent] if account["kind"] == "main"):
        changed = after["cause"] in ("tools_changed", "model_changed", "first_turn")
        assert (before["conversation"] != after["conversation"]) is changed


def test_where_the_prefix_changed_is_told(told: dict[str, list[Account]]) -> None:
    more_tools, other_model = told["changes"][4:6]
    assert more_tools["where"] == "tools"
    assert "asked for claude-haiku-4-5 after claude-opus" in other_model["sentence"]


def test_a_compaction_finds_the_old_prefix_and_the_turn_after_it_cannot(told: dict[str, list[Account]]) -> None:
    before, compaction, after = told["compacts"][3:6]
    assert compaction["cached_tokens"] >= 0.95 * before["prompt_tokens"]
    assert after["cached_tokens"] < before["prompt_tokens"]
    assert after["lost_tokens"] == 0
    assert "compacted its history" in after["sentence"]
    assert "of the old prompt are replaced" in after["sentence"]


def test_one_request_is_told_in_words_and_all_are_counted(
    cluster: Cluster, told: dict[str, list[Account]], tmp_path: Path
) -> None:
    account = told["changes"][4]
    with Corral(tmp_path) as corral:
        words = asked(corral, cluster, account["request"])
    assert "tools changed, lost" in words
    assert account["sentence"] in words
    assert "What to do: Keep the list of tools fixed" in words
    causes = [cause for _, cause in [*GOES_ON, *CHANGES, *COMPACTS] if cause != "none"]
    counted = {cause: causes.count(cause) for cause in causes}
    wait_for(lambda: {c: m["count"] for c, m in cluster.status()["misses"].items()} == counted, f"{counted}")
