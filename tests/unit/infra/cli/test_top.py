"""The tables of `corral top`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from infra.cli import top, top_requests
from infra.cli.gateway import Ended, Lost, Running, Slot, Status, Worker
from tests.unit.infra.cli.conftest import FixedApi

pytestmark = pytest.mark.unit
SLOTS = (Slot(slot=0, busy=True, tokens=9), Slot(slot=1, conversation="c", tokens=1000))
MS = st.none() | st.integers(0, 10**6)


def printed(found: Status, width: int = 160) -> list[str]:
    console = Console(width=width, height=60, no_color=True)
    with console.capture() as capture:
        console.print(top.shown(found))
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_running_and_recent_requests_are_shown_with_where_their_time_went() -> None:
    found = Status(
        workers=(Worker(name="w1", state="ready", context_tokens=9000, slots=SLOTS),),
        running=(
            Running(agent="waiter", worker="w1", took_ms=2500),
            Running(agent="reader", worker="w1", slot=1, queue_ms=3, prompt_tokens=1000, cached_tokens=250, took_ms=40),
            Running(agent="writer", worker="w1", slot=0, queue_ms=0, prompt_tokens=9, told=40, per_s=19.5, took_ms=20),
            Running(agent="cut", worker="w2", queue_ms=0, prompt_tokens=9, told=4, took_ms=20, waits_again=True),
        ),
        recent=(
            Ended(
                agent="done", worker="w1", outcome="done", stop_reason="end_turn", took_ms=2400, queue_ms=600,
                prefill_ms=600, decode_ms=1000, first_ms=1250, eta_ms=900, prompt_tokens=100,
                cached_tokens=100, output_tokens=7, miss="first_turn",
            ),
            Ended(agent="refused", outcome="failed", reason="queue_full", took_ms=1200),
        ),
    )  # fmt: skip
    lines = printed(found)
    assert lines[0] == "1 ready running 0/2 waiting 0 tokens/s 20 reuse 100 % first token 1.2 s"
    assert f"w1/0 writer answers ▒{'·' * 23} 49 9000" in lines
    assert f"w1/1 reader idle █▒▒{'·' * 21} 1000 9000" in lines
    assert "waiter w1 waits 2.5 s" in lines
    assert "reader w1/1 prefills 1000 25 % 40 ms" in lines
    assert "writer w1/0 answers 9 0 % 40 19.5 20 ms" in lines
    assert "cut w2 waits again 9 0 % 4 20 ms" in lines
    assert "done end turn ░░░░░░▒▒▒▒▒▒██████████·· 1.2 s 2.4 s 900 ms 600 ms 100 100 % 7 first turn" in lines
    assert "refused queue full ············ 1.2 s" in lines


def test_a_long_name_and_a_very_long_request_leave_the_others_readable() -> None:
    times = {"name-of-an-agent-that-is-far-too-long": 90_000, "a": 1000, "b": 1000}
    recent = tuple(Ended(agent=agent, stop_reason="end_turn", took_ms=ms) for agent, ms in times.items())
    lines = printed(Status(workers=(Worker(name="w1", state="ready"),), recent=recent))
    assert f"name-of-an-agent-that-i… end turn {'·' * top_requests.WIDTH} 90.0 s" in lines
    assert "a end turn ····· 1.0 s" in lines


def test_on_80_columns_a_request_is_one_line_that_says_how_it_ended_and_how_long_it_took() -> None:
    of_a_name = {
        "reviewer": "reviewer end turn ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ 3.8 s 0 % first turn",
        "n" * 30: f"{'n' * 23}… end turn 3.8 s 0 % first turn",
    }
    for agent, line in of_a_name.items():
        slot = Slot(slot=0, agent=agent, conversation="c", tokens=32472)
        ended = Ended(
            agent=agent, worker="w1", outcome="done", stop_reason="end_turn", took_ms=3800, queue_ms=0,
            prefill_ms=3800, decode_ms=0, first_ms=3790, eta_ms=0, prompt_tokens=32467, output_tokens=5,
            miss="first_turn",
        )  # fmt: skip
        worker = Worker(name="w1", state="ready", context_tokens=262144, slots=(slot,))
        lines = printed(Status(workers=(worker,), recent=(ended,)), width=80)
        assert line in lines
        assert any(one.startswith(f"w1/0 {agent} idle") for one in lines)


def test_where_the_time_of_a_left_answer_went_is_told_by_its_first_token() -> None:
    assert top_requests.stages(Ended(took_ms=900, queue_ms=100, first_ms=400)) == (100, 300, 500)
    assert top_requests.stages(Ended(took_ms=900, queue_ms=100)) == (100, 800, 0)
    assert top_requests.stages(Ended(took_ms=900)) == (0, 0, 0)


@given(st.tuples(MS, MS, MS), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_bar_is_as_long_as_its_request_took(parts: tuple[int | None, ...], took: int, more: int) -> None:
    queue_ms, prefill_ms, decode_ms = parts
    one = Ended(took_ms=took, queue_ms=queue_ms, prefill_ms=prefill_ms, decode_ms=decode_ms)
    longest = took + more
    assert len(top_requests.bar(one, longest)) == (round(top_requests.WIDTH * took / longest) if longest else 0)


def test_a_worker_that_is_not_ready_comes_before_all_else() -> None:
    lost = Lost(name="w2", queued=(0, 2), running=1)
    lines = printed(Status(workers=(Worker(name="w1", state="sick"),), lost=(lost,)))
    assert lines[0].startswith("no worker is ready")
    assert lines[3:5] == ["w1 sick - 0/0 0 - -", "w2 gone 3 of its requests are left - - - -"]


def test_off_a_terminal_it_shows_all_once_and_plain(fixed_api: FixedApi, capsys: pytest.CaptureFixture[str]) -> None:
    top.top(url=fixed_api.url)
    text = capsys.readouterr().out
    assert "1 ready  running" in text
    assert "reviewer" in text
    assert "\x1b" not in text
