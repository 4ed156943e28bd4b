"""A base is recorded from what the client really sends, without what its user typed."""

import json
import sys
from pathlib import Path

import httpx
import pytest

from infra import warm_files
from infra.cli import claude
from infra.cli.base_recorder import BaseRecorder
from infra.errors import ConfigError, StartError
from tests.unit.infra.cli.conftest import FixedApi

pytestmark = pytest.mark.unit

ASKED = {
    "system": [{"type": "text", "text": "You help \N{SNOWMAN}."}],
    "tools": [{"name": "Bash", "input_schema": {"type": "object"}}],
    "thinking": {"type": "adaptive"},
}
TYPED = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "my secret"}]}


def test_the_first_request_with_tools_is_written_without_its_messages(tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    with BaseRecorder(file) as recorder, httpx.Client(base_url=recorder.url, trust_env=False) as http:
        assert http.head("/").status_code == 200
        http.post("/v1/messages", json=TYPED | {"system": "a title, please"})
        assert not file.exists()
        answer = http.post("/v1/messages?beta=true", json=ASKED | TYPED)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
        assert answer.json()["error"]["message"].startswith("recorded")
        http.post("/v1/messages", json=TYPED | {"tools": [{"name": "later"}]})
        assert recorder.recorded
    assert json.loads(file.read_text(encoding="utf-8")) == ASKED
    assert warm_files.read([file])[0].about_tokens > 0


def test_a_file_that_no_setting_could_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--record-base .*base\.md: must end in \.json"):
        BaseRecorder(tmp_path / "base.md")


def test_a_folder_that_is_not_there_is_told_before_the_client_is_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--record-base .*base\.json: its folder is not there"):
        BaseRecorder(tmp_path / "nowhere" / "base.json")


CLIENT = """#!{python}
import os, sys, urllib.request
body = {body!r}
if "-p" in sys.argv:
    urllib.request.urlopen(urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body))
"""


def test_the_client_is_run_on_the_recorder_and_left(
    fixed_api: FixedApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "claude"
    program.write_text(CLIENT.format(python=sys.executable, body=json.dumps(ASKED | TYPED).encode()))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "base.json"
    claude.claude(["-p", "hi"], url=fixed_api.url, record_base=file)
    assert json.loads(file.read_text(encoding="utf-8")) == ASKED
    assert f"Wrote {file}, about" in capsys.readouterr().out
    with pytest.raises(StartError, match="asked nothing"):
        claude.claude([], url=fixed_api.url, record_base=tmp_path / "other.json")
