"""The environment Claude Code is started with."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.cli import claude
from infra.cli.claude import Served
from infra.cli.gateway import Status, Worker
from infra.config import Settings
from infra.errors import NoWorker, StartError
from tests.unit.infra.cli.conftest import FixedApi

pytestmark = pytest.mark.unit


def test_headers_are_lines_and_the_users_own_stay() -> None:
    existing = "X-Team: blue\nx-agent-id: old\n\n"
    assert claude.headers("me", 2, existing) == "X-Team: blue\nX-Agent-Id: me\nX-Priority: 2"
    assert claude.headers("me", None, "X-Priority: 7") == "X-Priority: 7\nX-Agent-Id: me"


@given(st.text())
def test_any_name_becomes_one_that_a_header_carries(name: str) -> None:
    safe = claude.header_safe(name)
    assert 0 < len(safe) <= 64
    assert all(letter.isascii() and (letter.isalnum() or letter in "._@-") for letter in safe)


def test_every_kind_of_model_is_the_served_one() -> None:
    variables = claude.environment(Settings(), "http://x", "k", Served("anthropic-m", 65536), "X-Agent-Id: a")
    models = {variables[name] for name in variables if name.endswith("_MODEL")}
    assert models == {"anthropic-m"}
    assert variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "65536"
    assert variables["CLAUDE_CODE_RETRY_WATCHDOG"] == "1"


@given(st.integers(1024, 10**6))
def test_the_room_to_write_in_fits_the_window(window: int) -> None:
    variables = claude.environment(Settings(), "u", "k", Served("m", window), "")
    assert 1024 <= int(variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"]) <= min(32000, max(1024, window // 4))


def test_the_client_waits_as_long_as_the_api_lets_it_wait() -> None:
    settings = Settings(wait_identified_s=900, first_token_timeout_s=300)
    variables = claude.environment(settings, "u", "k", Served("m", 1), "")
    for name in ("API_TIMEOUT_MS", "CLAUDE_STREAM_IDLE_TIMEOUT_MS", "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS"):
        assert variables[name] == "1200000"


def test_the_smallest_window_of_the_model_counts() -> None:
    status = Status(
        workers=(
            Worker(name="a", state="ready", model="m", context_tokens=65536),
            Worker(name="b", state="ready", model="m", context_tokens=32768),
            Worker(name="c", state="ready", model="other", context_tokens=1024),
        )
    )
    assert claude.choose(("m", "other"), status) == Served("m", 32768)
    with pytest.raises(NoWorker, match="corral status"):
        claude.choose(("m",), Status())


def test_a_proxy_is_told_to_leave_the_api_alone() -> None:
    assert claude.proxy_exception("http://10.0.0.5:8000", {}) == {}
    environ = {"HTTPS_PROXY": "http://proxy", "NO_PROXY": "intern"}
    assert claude.proxy_exception("http://10.0.0.5:8000", environ)["NO_PROXY"] == "intern,10.0.0.5"


def test_a_missing_client_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(StartError, match="npm install -g @anthropic-ai/claude-code"):
        claude.claude()


def test_the_client_takes_over_with_its_arguments_and_without_other_credentials(
    fixed_api: FixedApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken: list[tuple[str, Sequence[str], Mapping[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda *arguments: taken.append(arguments))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-real")
    monkeypatch.setenv("CLAUDE_CODE_USE_BEDROCK", "1")
    program = tmp_path / "claude"
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    claude.claude(["-p", "hello"], agent="re viewer", priority=1, url=fixed_api.url)
    path, command, environ = taken[0]
    assert (path, command) == (str(program), ["claude", "-p", "hello"])
    assert environ["ANTHROPIC_BASE_URL"] == fixed_api.url
    assert environ["ANTHROPIC_CUSTOM_HEADERS"] == "X-Agent-Id: re-viewer\nX-Priority: 1"
    assert "ANTHROPIC_API_KEY" not in environ
    assert "CLAUDE_CODE_USE_BEDROCK" not in environ


def test_the_environment_can_be_printed_and_pasted(
    fixed_api: FixedApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "my project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    claude.claude(url=fixed_api.url, priority=3, print_env=True)
    lines = capsys.readouterr().out.splitlines()
    assert "export ANTHROPIC_MODEL=anthropic-m" in lines
    assert r"export ANTHROPIC_CUSTOM_HEADERS=$'X-Agent-Id: my-project\nX-Priority: 3'" in lines
