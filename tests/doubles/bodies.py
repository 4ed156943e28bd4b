"""Requests shaped like Claude Code's, for tests and load.

Owns: the proportions of a real body: three system blocks, 24 tools, a system entry in mid-conversation, tool turns.
Never: words of the real client. The same arguments always give the same bytes; a longer conversation of one agent
begins with the shorter one.
"""

import json
import random
from typing import Any
from uuid import NAMESPACE_URL, uuid5

TOOL_COUNT = 24
SYSTEM_CHARS = 6_000
AGENT_TYPES_CHARS = 1_600
# What is told apart from turn to turn and from agent to agent, as in the real client.
ATTRIBUTION = "x-anthropic-billing-header: cc_version=2.1.197.{build}; cc_entrypoint=cli;"

_SENTENCES = (
    "the file path to read before an edit must be absolute and a command may run in the background until its output "
    "is asked for return only what changed use this tool when you need several steps never guess a name search first "
    "tests lint build branch commit review plan task agent result error line number pattern value default optional"
)
_WORDS = _SENTENCES.split()


def claude_headers(agent: str = "one", *, level: int | None = None) -> dict[str, str]:
    """The headers, lower-case, that tell who asks; `level` as X-Priority."""
    headers = {
        "x-claude-code-session-id": session_id(agent),
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
        "x-stainless-retry-count": "0",
    }
    return headers if level is None else headers | {"x-priority": str(level)}


def session_id(agent: str) -> str:
    return str(uuid5(NAMESPACE_URL, agent))


def claude_body(
    turns: int = 0, size_bytes: int = 80_000, agent: str = "one", max_tokens: int = 32_000, *, stream: bool = True
) -> dict[str, Any]:
    """A body after `turns` tool turns. `size_bytes` (24 kB at least) is its size before the first; each adds 1.3 kB.

    Agents differ in session, working folder and task; they share the tools, as agents of one client version do.
    """
    body = {
        "model": "claude-opus-4-8",
        "messages": _opening(agent) + [entry for turn in range(turns) for entry in _turn(agent, turn)],
        "system": _system(agent),
        "tools": [],
        "metadata": {"user_id": json.dumps({"device_id": "0" * 64, "session_id": session_id(agent)})},
        "max_tokens": max_tokens,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": stream,
    }
    first = body | {"messages": _opening(agent)}
    return body | {"tools": _tools(size_bytes - len(json.dumps(first)))}


def _prose(seed: str, chars: int) -> str:
    words = random.Random(seed).choices(_WORDS, k=max(chars, 1) // 3 + 1)
    return " ".join(words)[: max(chars, 0)]


def _system(agent: str) -> list[dict[str, Any]]:
    build = session_id(agent)[:3]
    cached = {"cache_control": {"type": "ephemeral"}}
    return [
        {"type": "text", "text": ATTRIBUTION.format(build=build)},
        {"type": "text", "text": "You are a coding agent on a command line.", **cached},
        {"type": "text", "text": f"\n{_prose('system', SYSTEM_CHARS)}\nWorking folder: /home/user/{agent}", **cached},
    ]


def _tools(chars: int) -> list[dict[str, Any]]:
    """As many characters of JSON in all; one tool is a third of it, the others shrink towards the end."""
    shares = [1 / 3] + [2 / 3 * (TOOL_COUNT - number) / sum(range(1, TOOL_COUNT)) for number in range(1, TOOL_COUNT)]
    return [_tool(number, int(chars * share)) for number, share in enumerate(shares)]


def _tool(number: int, chars: int) -> dict[str, Any]:
    properties = {
        "command": {"type": "string", "description": _prose(f"command {number}", 60), "maxLength": 100_000},
        "mode": {"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "null"}], "default": None},
        "when": {"type": "string", "format": "date-time", "pattern": r"^\d{4}-\d{2}"},
    }
    tool = {
        "name": f"Tool{number}" if number else "Bash",
        "description": "",
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": properties,
            "required": ["command"],
            "additionalProperties": False,
        },
    }
    return tool | {"description": _prose(f"tool {number}", chars - len(json.dumps(tool)) - 2)}


def _opening(agent: str) -> list[dict[str, Any]]:
    context = f"<system-reminder>\n{_prose('context', 240)}\n</system-reminder>\n"
    task = f"Task of {agent}: {_prose(agent, 200)}"
    return [
        {"role": "user", "content": [{"type": "text", "text": context}, {"type": "text", "text": task}]},
        {"role": "system", "content": f"Available agent types:\n{_prose('agent types', AGENT_TYPES_CHARS)}"},
    ]


def _turn(agent: str, turn: int) -> list[dict[str, Any]]:
    call_id = f"toolu_{uuid5(NAMESPACE_URL, f'{agent} {turn}').hex[:24]}"
    command = f"sed -n {turn},{turn + 40}p {agent}.py"
    call = {"type": "tool_use", "id": call_id, "name": "Bash", "input": {"command": command}}
    result = {"tool_use_id": call_id, "type": "tool_result", "content": _prose(command, 900), "is_error": False}
    return [
        {"role": "assistant", "content": [{"type": "text", "text": _prose(f"{command}?", 80)}, call]},
        {"role": "user", "content": [result]},
    ]
