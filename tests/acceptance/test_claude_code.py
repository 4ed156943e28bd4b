"""Real Claude Code on scripted models, which run on the real engine: two workers with four slots each."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import WINDOW_TOKENS, RealCluster, StartCluster
from tests.acceptance.wire import stream, user
from tests.doubles import scripted_model as scripts
from tests.doubles.claude import ClaudeCode, Outcome
from tests.doubles.cluster import Cluster
from tests.doubles.scripted_model import Script
from tests.doubles.services import wait_for

pytestmark = pytest.mark.acceptance

Line = dict[str, Any]
SMALL_WINDOW_TOKENS = 40960
FROM_THE_BASE = 0.85  # the rest is what the client says in its first message
ENOUGH = 0.95  # the share of a later turn's prompt that must come out of the cache


def lines_of(cluster: Cluster, agent: str, *, kind: str = "main", count: int = 2) -> list[Line]:
    """The log lines of the agent's answered requests of this kind; waits for `count` of them."""

    def found() -> list[Line]:
        lines = [line for line in cluster.log_lines() if line.get("event") == "request" and line.get("agent") == agent]
        return [line for line in lines if (line["kind"], line["outcome"]) == (kind, "done")]

    wait_for(lambda: len(found()) >= count, f"{count} log lines of {agent}")
    return found()


def cached_share(line: Line) -> float:
    return float(line["cached_tokens"] / line["prompt_tokens"])


def places(lines: list[Line]) -> set[tuple[str, int]]:
    return {(line["worker"], line["slot"]) for line in lines}


def ended_well(outcome: Outcome, answer: str, turns: int = 2) -> None:
    assert (outcome.status, outcome.text, outcome.turns) == (0, answer, turns), outcome.stdout[-2000:]


def test_a_tool_loop_ends_in_two_turns_and_finds_its_cache(pair: RealCluster, claude: ClaudeCode) -> None:
    cluster = pair(scripts.TOOL_THEN_TEXT)
    outcome = claude.run("Please begin.", url=cluster.url, agent="solo")
    ended_well(outcome, scripts.TOOL_THEN_TEXT.answer)
    first, second = lines_of(cluster, "solo")
    assert (first["stop_reason"], second["stop_reason"]) == ("tool_use", "end_turn")
    assert cached_share(second) >= ENOUGH


def test_four_agents_at_once_each_stay_on_one_slot(pair: RealCluster, claude: ClaudeCode) -> None:
    cluster = pair(scripts.TOOL_THEN_TEXT)
    agents = [f"agent-{number}" for number in range(4)]

    def run(agent: str) -> Outcome:
        return claude.run(f"Please begin, {agent}.", url=cluster.url, agent=agent, workspace=agent)

    with ThreadPoolExecutor(len(agents)) as pool:
        for outcome in pool.map(run, agents):
            ended_well(outcome, scripts.TOOL_THEN_TEXT.answer)
    held = [places(lines_of(cluster, agent)) for agent in agents]
    assert [len(places_) for places_ in held] == [1] * len(agents)
    assert len(set().union(*held)) == len(agents)
    assert all(cached_share(lines_of(cluster, agent)[1]) >= ENOUGH for agent in agents)


def test_an_agent_in_another_folder_finds_the_base_that_the_first_one_paid_for(
    pair: RealCluster, claude: ClaudeCode
) -> None:
    cluster = pair(scripts.TOOL_THEN_TEXT)
    for agent in ("one", "another"):
        outcome = claude.run("Please begin.", url=cluster.url, agent=agent, workspace=agent)
        ended_well(outcome, scripts.TOOL_THEN_TEXT.answer)
    first = lines_of(cluster, "another")[0]
    assert cached_share(first) >= FROM_THE_BASE, first


def test_a_subagent_runs_and_the_main_line_still_hits_its_cache(pair: RealCluster, claude: ClaudeCode) -> None:
    cluster = pair(scripts.SUBAGENT)
    outcome = claude.run("Please begin.", url=cluster.url, agent="boss", allowed_tools=("Agent", "Task"))
    ended_well(outcome, scripts.SUBAGENT.answer)
    main = lines_of(cluster, "boss")
    helper = lines_of(cluster, "boss", kind="subagent", count=1)
    assert len(places(main)) == 1
    assert places(main).isdisjoint(places(helper))
    assert cached_share(main[-1]) >= ENOUGH


def test_a_prompt_grown_past_the_window_makes_the_client_compact_and_go_on(
    start_cluster: StartCluster, claude: ClaudeCode, model_path: Callable[[Script], Path]
) -> None:
    script = scripts.TOOL_UNTIL_SUMMARY
    cluster = start_cluster(engine="embedded", model=model_path(script), context_tokens=SMALL_WINDOW_TOKENS)
    outcome = claude.run("Please begin.", url=cluster.url, agent="long")
    assert (outcome.status, outcome.text) == (0, script.answer), outcome.stdout[-2000:]
    lines = [line for line in cluster.log_lines() if line.get("event") == "request"]
    refused = [number for number, line in enumerate(lines) if line.get("reason") == "prompt_too_long"]
    assert len(refused) == 1
    assert refused[0] >= 3  # with a single turn there would be nothing to compact
    before, compaction, after = lines[refused[0] - 1], lines[refused[0] + 1], lines[refused[0] + 2 :]
    assert compaction["prompt_tokens"] > before["prompt_tokens"] - before["output_tokens"]
    assert [line["stop_reason"] for line in after] == ["end_turn"]
    assert after[0]["prompt_tokens"] < before["prompt_tokens"]
    assert len(places([before, compaction, *after])) == 1


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("busy_s", [60, 330])
def test_a_long_wait_behind_a_busy_worker_ends_in_the_answer(
    start_cluster: StartCluster, claude: ClaudeCode, busy_s: int
) -> None:
    cluster = start_cluster(workers=1, slots=1, context_tokens=WINDOW_TOKENS)
    with ThreadPoolExecutor(1) as pool:
        occupant = pool.submit(stream, cluster, user(f"say {busy_s} words at 1 tokens/s"), max_tokens=busy_s)
        wait_for(lambda: cluster.status()["workers"][0]["running"], "the worker to be busy")
        outcome = claude.run('say "worth the wait"', url=cluster.url, agent="patient", timeout_s=busy_s + 90)
        occupant.result()
    ended_well(outcome, "worth the wait", turns=1)
    [line] = lines_of(cluster, "patient", count=1)
    assert line["queue_ms"] > (busy_s - 15) * 1000  # what the client needs to start is not waited for
