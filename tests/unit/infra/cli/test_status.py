"""The tables of `corral status`."""

import json

import pytest
from rich.console import Console

from infra.cli import status
from infra.cli.gateway import Misses, Slot, Status, Store, Wait, Waiting, Worker
from infra.cli.status import COLOUR_OF, STARTS_OF
from infra.errors import CorralError
from scheduler.contract import WorkerState
from tests.unit.infra.cli.conftest import FixedApi

pytestmark = pytest.mark.unit


def printed(value: Status, width: int) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(status.tables(value))
    return capture.get()


def test_who_holds_what_is_shown(fixed_api: FixedApi, capsys: pytest.CaptureFixture[str]) -> None:
    status.status(url=fixed_api.url)
    text = capsys.readouterr().out
    for word in ("w1", "ready", "anthropic-m", "1/2", "65536", "3.0 GiB", "reviewer", "31234", "answering", "free"):
        assert word in text
    assert "Waiting in all: 9" in text
    assert "\x1b" not in text


def test_who_waits_for_how_long_is_shown_in_its_order(fixed_api: FixedApi, capsys: pytest.CaptureFixture[str]) -> None:
    status.status(url=fixed_api.url)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    first = lines.index(["w1", "1", "builder", "5", "3", "s", "12", "s"])
    assert lines[first + 1] == ["w1", "2", "tester", "5", "0", "s", "never"]
    assert lines[first + 2] == ["...", "7", "more"]


def test_how_right_the_expected_starts_are_is_told(fixed_api: FixedApi, capsys: pytest.CaptureFixture[str]) -> None:
    status.status(url=fixed_api.url)
    text = capsys.readouterr().out
    assert "Expected starts were off by 1.2 s in the median (8.0 s for nine in ten; last 120 waits)" in text
    assert "Refused: 13 (11 for a wait that is too long, 2 for a full line); waited in vain: 3." in text
    assert "7 came back in time and were let in, 0 may still come" in text
    assert "Moved to start sooner: 4; answered together with an identical request: 5" in text


def test_of_a_few_waits_nothing_is_said() -> None:
    for waits, told in ((4, False), (5, True)):
        value = Status(workers=(Worker(name="w1", state="ready"),), wait=Wait(waits=waits, median_error_s=1))
        assert ("Expected starts" in printed(value, 120)) is told


def test_callers_who_waited_in_vain_are_told_apart() -> None:
    text = printed(Status(workers=(Worker(name="w1", state="ready"),), wait=Wait(in_vain=2)), 200)
    assert "Refused: 0 (0 for a wait that is too long, 0 for a full line); waited in vain: 2." in text


@pytest.mark.parametrize(
    ("state", "words"), [("ready", "7 s"), ("loading", "once it is ready"), ("failing", "once it is ready")]
)
def test_while_a_worker_loads_no_start_is_foretold(state: str, words: str) -> None:
    line = (Waiting(place=1, agent="a", level=5, waited_s=3, expected_s=7),)
    text = printed(Status(workers=(Worker(name="w1", state=state, line=line),)), 120)
    row = next(row for row in text.splitlines() if row.startswith("w1") and " 3 s " in row)
    assert row.rstrip().endswith(words)


@pytest.mark.parametrize("columns", [80, 60])
def test_what_is_watched_fits_a_small_terminal_with_the_words_on_top(columns: int) -> None:
    line = tuple(Waiting(place=n + 1, agent=f"a{n}", level=5, waited_s=3, expected_s=7) for n in range(20))
    worker = Worker(
        name="w1", state="ready", model="anthropic-m", slots=tuple(Slot(slot=n) for n in range(3)),
        queued=(0,) * 5 + (23,) + (0,) * 4, line=line, store=Store(), engine_bytes=2**30,
    )  # fmt: skip
    wait = Wait(waits=40, refused={"wait": 11, "full": 2}, in_vain=4, promises_open=3, moved=2)
    value = Status(workers=(worker,), waiting=23, wait=wait, misses={"evicted": Misses(count=1)})
    console = Console(width=columns, height=24, no_color=True, soft_wrap=True)
    with console.capture() as capture:
        console.print(status.fitted(value))
    lines = [row.rstrip() for row in capture.get().splitlines()]
    assert len(lines) <= 24
    assert max(map(len, lines)) <= columns
    assert lines[0] == "Waiting in all: 23"
    words = " ".join(capture.get().split())
    for sentence in status.wait_words(value).plain.splitlines():
        assert sentence in words
    shown = sum(row.startswith("w1") and row.endswith("7 s") for row in lines)
    assert shown >= 4
    assert f"... {23 - shown} more" in lines


def test_where_nobody_waited_nothing_is_said_of_waits() -> None:
    text = printed(Status(workers=(Worker(name="w1", state="ready"),)), 120)
    assert "Waiting in all: 0" in text
    for word in ("Expected starts", "Refused", "Moved", "Waiting at"):
        assert word not in text


def test_saved_caches_and_misses_are_shown(fixed_api: FixedApi, capsys: pytest.CaptureFixture[str]) -> None:
    status.status(url=fixed_api.url)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["w1", "on", "5.0", "GiB", "41", "17", "0"] in lines
    assert ["evicted", "3", "84210", "61.4"] in lines
    assert ["first", "turn", "8", "0", "0.0"] in lines


def test_a_store_that_is_off_says_why() -> None:
    worker = Worker(name="w1", state="ready", store=Store(off="a sliding window: a restored cache saves nothing"))
    text = printed(Status(workers=(worker,)), 120)
    assert "off" in text
    assert "a sliding window" in text


def test_json_is_what_the_api_said(fixed_api: FixedApi, capsys: pytest.CaptureFixture[str]) -> None:
    status.status(as_json=True, url=fixed_api.url)
    assert json.loads(capsys.readouterr().out) == fixed_api.answers["/v1/status"][1]


def test_a_silent_api_is_an_error_in_one_sentence(fixed_api: FixedApi) -> None:
    fixed_api.stop()
    with pytest.raises(CorralError, match="does not answer"):
        status.status(url=fixed_api.url)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_tables_fit_the_terminal(width: int) -> None:
    slots = tuple(Slot(slot=n, conversation="c" * 40, agent="a-rather-long-agent-name", tokens=10**5) for n in range(8))
    worker = Worker(
        name="big-box-gpu0-1",
        state="draining",
        model="anthropic-qwen3-coder-30b-a3b-instruct-q4-k-m",
        reason="the engine ended and is started again",
        context_tokens=262144,
        slots=slots,
        queued=(123,) * 10,
        line=(Waiting(place=20, agent="a-rather-long-agent-name-here", level=5, waited_s=599, expected_s=599),),
        gpu="0,1",
        engine_bytes=23 * 2**30,
        store=Store(off="the probe: the engine reused 3 of 512 tokens", used_bytes=2**40, saves=10**6, restores=10**6),
    )
    misses = {"history_rewritten": Misses(count=10**6, tokens=10**11, ms=10**9)}
    wait = Wait(waits=500, median_error_s=100, p90_error_s=300, ratio=10, refused={"wait": 10**6, "full": 10**6})
    text = printed(Status(workers=(worker,), misses=misses, wait=wait), width)
    lines = text.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    assert all(word in text for word in ("engine", "ended", "started", "again"))
    assert "\u2026" not in text


def test_an_empty_cluster_says_how_to_fill_it() -> None:
    assert "corral up" in printed(Status(), 80)


def test_every_state_of_a_worker_has_a_colour_and_words_for_those_who_wait_there() -> None:
    assert set(COLOUR_OF) == set(WorkerState)
    assert set(STARTS_OF) == set(WorkerState) - {WorkerState.READY}
