"""`corral why`: one account or several, in words."""

import json
import sys
from typing import Any

import pytest

from infra.cli import console, main, why
from infra.errors import NotFound
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


@pytest.mark.parametrize(
    ("cause", "lost", "heading"),
    [
        ("none", 1, "req_1 (main of team/reviewer 1): none"),
        ("evicted", 1, "req_1 (main of team/reviewer 1): evicted, lost 1 token and 20.4 s"),
        ("compaction", 0, "req_1 (main of team/reviewer 1): compaction"),
    ],
)
def test_a_loss_is_told_only_where_there_is_one(
    cause: str, lost: int, heading: str, fixed_api: FixedApi, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed_api.answers[PATH] = (200, {"requests": [{**EVICTED, "cause": cause, "lost_tokens": lost}]})
    why.why("team/reviewer 1", url=fixed_api.url)
    assert capsys.readouterr().out.splitlines()[0] == heading


def test_a_long_heading_is_broken_between_words(
    fixed_api: FixedApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.out, "_force_terminal", True)
    monkeypatch.setattr(console.out, "is_interactive", True)
    for name, value in {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    agent = "the reviewer of the third team in the second house on the left"
    fixed_api.answers["/v1/why/req_1"] = (200, {"requests": [{**EVICTED, "agent": agent}]})
    why.why("req_1", url=fixed_api.url)
    lines = capsys.readouterr().out.splitlines()
    heading = f"req_1 (main of {agent}): evicted, lost 28,120 tokens and 20.4 s"
    assert [word for line in lines[:2] for word in line.split()] == heading.split()
    assert max(map(len, lines)) <= 80


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


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_refused_without_asking(
    name: str, fixed_api: FixedApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["corral", "why", name, "--url", fixed_api.url])
    with pytest.raises(SystemExit) as left:
        main.main()
    assert left.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: REQUEST|AGENT is empty; give a request's id or an agent's name"
    ]
    assert fixed_api.keys == []


@pytest.mark.parametrize("as_json", [False, True])
def test_a_long_unknown_name_is_shortened(as_json: bool, fixed_api: FixedApi) -> None:
    name = "n" * 300
    fixed_api.answers[f"/v1/why/{name}"] = (404, {"error": {"message": f"{name}: no request or agent of that name"}})
    with pytest.raises(NotFound) as refused:
        why.why(name, as_json=as_json, url=fixed_api.url)
    assert refused.value.message == f"{'n' * 57}...: no request or agent of that name"


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
