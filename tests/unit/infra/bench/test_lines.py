"""What the lines of an agent ask, and what is kept of it."""

import asyncio
import json
from typing import Any

import pytest

from infra.bench.asking import MESSAGES, Target
from infra.bench.lines import CUT_OFF, Line, Run, said
from tests.unit.infra.bench.test_asking import GATEWAY, answering

pytestmark = pytest.mark.unit

TALK = Line("a", "main", fresh_tokens=20, output_tokens=5, turns=3)


def body(line: Line, number: int) -> dict[str, Any]:
    return dict(json.loads(line.body("seed", number)))


def test_a_line_without_tools_asks_each_time_for_something_else_in_one_conversation() -> None:
    line = Line("a", "one", fresh_tokens=20, output_tokens=5)
    first, second = body(line, 0), body(line, 1)
    assert first["system"] == second["system"]
    assert first["messages"] != second["messages"]
    assert first["messages"][0]["content"].endswith("say 5 words.")
    assert first["max_tokens"] == 5


def test_a_line_of_tool_turns_goes_on_from_what_was_said_and_starts_over() -> None:
    first, third, fourth = body(TALK, 0), body(TALK, 2), body(TALK, 3)
    assert third["messages"][: len(first["messages"])] == first["messages"]
    assert third["messages"][1]["content"][0]["text"] == said(5)
    assert len(third["messages"]) == 5
    assert len(fourth["messages"]) == 1


def test_the_headers_tell_agent_level_subagent_and_key() -> None:
    line = Line("a", "sub1", 1, 1, level=2, subagent=True, key="secret")
    assert (
        line.headers.items()
        >= {
            "x-agent-id": "a",
            "x-priority": "2",
            "x-claude-code-agent-id": "sub1",
            "x-api-key": "secret",
        }.items()
    )


async def test_what_ended_is_kept_and_what_still_runs_is_cut_off() -> None:
    async with answering(GATEWAY) as url:
        target = Target(url, "", MESSAGES)
        run = Run(target, "seed")
        await run.some(TALK, 0, 2)
        silent = asyncio.Event()

        async def ask(*_: object) -> None:
            silent.set()
            await asyncio.Event().wait()

        target.ask = ask  # type: ignore[assignment, method-assign]
        async with run.at_work([TALK]):
            await silent.wait()
        await target.close()
    assert [one.outcome.error for one in run.served] == ["", "", CUT_OFF]
