"""A warm-up begins with the very bytes that its conversations begin with."""

import json
from pathlib import Path
from typing import Any

import pytest

from api.protocol.base import base_of
from api.protocol.request import Reading, parse
from infra.errors import ConfigError
from infra.warm_files import WarmFile, read
from scheduler.packing import unpack
from scheduler.policy.chain import common_messages

pytestmark = pytest.mark.unit

SYSTEM: list[dict[str, Any]] = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=first;"},
    {"type": "text", "text": "You are careful.\n", "cache_control": {"type": "ephemeral"}},
    {"type": "text", "text": "Rules \N{SNOWMAN}: 1, 2, 3."},
]
TOOLS: list[dict[str, Any]] = [
    {"name": "Write", "description": "d", "input_schema": {"type": "object", "properties": {"z": {}, "a": {}}}},
    {"name": "Bash", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
]


def file_of(folder: Path, **fields: Any) -> WarmFile:
    path = folder / "recorded.json"
    path.write_text(json.dumps({"model": "m", "messages": [{"role": "user", "content": "old"}], **fields}))
    return read([path])[0]


def test_it_has_the_base_of_a_later_conversation(tmp_path: Path) -> None:
    base = base_of(file_of(tmp_path, system=SYSTEM, tools=TOOLS, thinking={"type": "adaptive"}), Reading())
    other = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=second;"}, *SYSTEM[1:]]
    asked = {"system": other, "tools": TOOLS, "thinking": {"type": "adaptive"}, "max_tokens": 32000}
    asked |= {"messages": [{"role": "user", "content": "new"}], "tool_choice": {"type": "any"}}
    call = parse(json.dumps(asked).encode(), {}, key_name="k", models=["m"], default_level=5)
    assert base.chain.base == call.chain.base
    assert common_messages(base.chain, call.chain) == 0
    warm, real = unpack(base.request("m").body), unpack(call.request.body)
    assert (warm.system, warm.tools, warm.thinking) == (real.system, real.tools, real.thinking)
    assert (warm.model, warm.max_tokens, len(warm.messages)) == ("m", 1, 1)


def test_a_body_that_no_client_may_send_is_named_with_its_field(tmp_path: Path) -> None:
    twice = file_of(tmp_path, tools=[TOOLS[0], TOOLS[0]])
    with pytest.raises(ConfigError, match=r"^warm: .*recorded\.json: tools\[1\]\.name"):
        base_of(twice, Reading())
