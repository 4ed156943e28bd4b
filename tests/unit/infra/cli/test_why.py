"""`corral why`: one account or several, in words."""

import json
import sys
from typing import Any

import pytest

from infra.cli import main, why
from tests.unit.infra.cli.conftest import FixedApi

pytestmark = pytest.mark.unit

EVICTED: dict[str, Any] = {
    "request": "req_1",
    "agent": "team/reviewer 1",
    "kind": "main",
    "cause": "evicted",
    "lost_tokens": 28120,
    "lost_ms": 20440,
    "sentence": "Another conversation took its slot.",
    "to_do": "More slots.",
    "something_new": 1,
}
PATH = "/v1/why/team%2Freviewer%201"


def test_an_account_is_a_sentence_its_cost_and_what_to_do(
    fixed_api: FixedApi, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed_api.answers[PATH] = (200, {"requests": [EVICTED]})
    why.why("team/reviewer 1", url=fixed_api.url, key="secret")
    assert capsys.readouterr().out.splitlines() == [
        "req_1 (main of team/reviewer 1): evicted, lost 28,120 tokens and 20.4 s",
        "  Another conversation took its slot.",
        "  What to do: More slots.",
    ]
    assert fixed_api.keys == ["secret"]


def test_json_is_what_the_api_said(fixed_api: FixedApi, capsys: pytest.CaptureFixture[str]) -> None:
    fixed_api.answers["/v1/why/req_1"] = (200, {"requests": [EVICTED]})
    why.why("req_1", as_json=True, url=fixed_api.url)
    assert json.loads(capsys.readouterr().out) == {"requests": [EVICTED]}


def test_an_unknown_name_is_one_sentence_and_exit_code_1(
    fixed_api: FixedApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed_api.answers["/v1/why/nobody"] = (404, {"error": {"message": "nobody: no request or agent of that name"}})
    monkeypatch.setattr(sys, "argv", ["corral", "why", "nobody", "--url", fixed_api.url])
    with pytest.raises(SystemExit) as left:
        main.main()
    assert left.value.code == 1
    assert capsys.readouterr().err.splitlines() == ["error: nobody: no request or agent of that name"]


@pytest.mark.parametrize("body", [{}, {"requests": [{"agent": 3}]}, {"requests": 1}, b"<html>"])
def test_what_is_no_account_is_told(
    fixed_api: FixedApi, body: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed_api.answers["/v1/why/x"] = (200, body)
    monkeypatch.setattr(sys, "argv", ["corral", "why", "x", "--url", fixed_api.url])
    with pytest.raises(SystemExit) as left:
        main.main()
    assert left.value.code == 1
    assert "is not Corral's API" in capsys.readouterr().err
