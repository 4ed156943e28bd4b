"""The first conversation with a base prefills it for all, says honestly what that cost, and can be stopped at it."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from infra.errors import Cancelled, CorralError, EngineLost, EngineRefused, EngineTimeout, PromptTooLong
from scheduler.contract import ClaimedJob, GenerationRequest, Kind, Source, StopReason
from scheduler.policy.chain import chain
from tests.doubles.slot_engine import request, tokens_of_prompt
from tests.unit.workers.house import BASE, House
from workers.bases import Found, prepare
from workers.caches import Brought, Caches
from workers.llama.client import End, Prompt
from workers.running import Running
from workers.serving import Serving
from workers.slots import Slot, Want
from workers.store import base_name

pytestmark = pytest.mark.unit
WAIT_S = 20


class Asked:
    """One answer of the engine; `stop` is waited for after the prompt was told, if there is one."""

    def __init__(self, house: House, slot: int, wanted: GenerationRequest, fails: CorralError | None) -> None:
        self.house, self.slot, self.wanted, self.fails = house, slot, wanted, fails
        self.cancelled = threading.Event()
        self.told = threading.Event()
        self.hangs = False

    def __enter__(self) -> "Asked":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def cancel(self) -> None:
        self.cancelled.set()

    def __iter__(self) -> Iterator[Prompt | End]:
        if self.cancelled.is_set():
            raise Cancelled("gone")
        if self.fails is not None:
            raise self.fails
        prompt = self.house.engine.prefill(self.slot, chain(self.wanted))
        yield prompt
        self.told.set()
        if self.hangs:
            assert self.cancelled.wait(WAIT_S)
            raise Cancelled("gone")
        tokens = prompt.total_tokens - prompt.cached_tokens
        yield End(StopReason.MAX_TOKENS, None, prompt.total_tokens, prompt.cached_tokens, 0, tokens, 1)


class Line:
    """A worker that is asked: its house, the engine behind it, and the jobs that run."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        self.house = House(folder, count)
        self.running = Running()
        self.asked: list[Asked] = []
        self.fails: CorralError | None = None
        self.hangs = False

    def generation(self, wanted: GenerationRequest, slot: int, traceparent: str = "") -> Asked:
        assert not traceparent
        asked = Asked(self.house, slot, wanted, self.fails)
        asked.hangs = self.hangs
        self.asked.append(asked)
        return asked

    def prepared(self, name: str, kind: Kind = Kind.MAIN, system: str = BASE) -> tuple[Found, int, int]:
        """What the request found, what the engine then reuses for it, and the tokens of its prompt."""
        wanted = request(system, f"{name} asks something of its own. " * 20)
        want = Want(name, "agent", kind, chain(wanted))
        job = ClaimedJob(f"job-{name}", 1, 5, "agent", name, kind, 0, False, b"")
        serving = cast(Serving, cast(Any, self))
        with self.running.job(job.id), self.house.table.hold(want) as slot:
            found = prepare(self.house.caches, serving, self.running, job, wanted, slot, want)
            prompt = self.house.engine.prefill(slot.number, want.chain)
            self.house.caches.prompt(slot, want, prompt)
            return found, prompt.cached_tokens, prompt.total_tokens

    def describe(self) -> None:
        assert self.house.caches.saved is not None
        self.house.caches.saved.describe()


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path / "kv")


NAME = base_name(chain(request(BASE)).base)
BASE_TOKENS = len(tokens_of_prompt(chain(request(BASE))))


def test_the_first_conversation_pays_for_the_base_and_says_so(line: Line) -> None:
    found, reused, whole = line.prepared("aa")
    assert reused == BASE_TOKENS
    assert found.cached_tokens(reused) == 0
    assert found.laid_tokens >= BASE_TOKENS
    assert line.house.engine.prefilled == found.laid_tokens + whole - reused
    assert line.house.store.find(NAME)


def test_the_next_one_restores_it_and_says_that_it_was_cached(line: Line) -> None:
    line.prepared("aa")
    line.describe()
    found, reused, _ = line.prepared("bb")
    assert found.brought.source is Source.BASE
    assert found.cached_tokens(reused) == reused == BASE_TOKENS
    assert len(line.asked) == 1


def test_what_was_cached_of_the_base_before_it_was_laid_counts_as_cached(line: Line) -> None:
    """The engine knows more than we do: the slot held a part of it after all."""
    half = tokens_of_prompt(chain(request(BASE)))[: BASE_TOKENS // 2]
    line.house.engine.held = [list(half) for _ in line.house.engine.held]
    found, reused, whole = line.prepared("aa")
    assert found.cached_tokens(reused) <= len(half)
    assert found.cached_tokens(reused) >= len(half) - 20  # the full stop in the place of its message
    assert line.house.engine.prefilled == pytest.approx(whole - found.cached_tokens(reused), abs=20)


def test_a_side_call_makes_no_base(line: Line) -> None:
    found, _, _ = line.prepared("aa", Kind.SIDE)
    assert (found.laid_tokens, line.asked) == (0, [])


def test_a_short_base_is_not_made(line: Line) -> None:
    line.prepared("aa", system="Be brief.")
    assert line.asked == []


@pytest.mark.parametrize(
    "error", [EngineRefused("the engine refused: x"), EngineTimeout("slow"), PromptTooLong(2, 1)], ids=lambda e: e.code
)
def test_a_base_that_the_engine_refuses_costs_nothing_but_the_try(line: Line, error: CorralError) -> None:
    line.fails = error
    with structlog.testing.capture_logs() as logged:
        found, reused, _ = line.prepared("aa")
    assert (found.laid_tokens, reused) == (0, 0)
    assert [entry["event"] for entry in logged] == ["base_not_made"]
    line.fails = None
    assert line.prepared("bb")[0].laid_tokens > 0  # and the lock is free


def test_an_engine_that_is_lost_meanwhile_fails_the_request_and_frees_the_lock(line: Line, tmp_path: Path) -> None:
    line.fails = EngineLost("gone")
    with pytest.raises(EngineLost):
        line.prepared("aa")
    assert not any(slot.busy for slot in line.house.table.slots)
    assert Line(tmp_path / "kv").prepared("bb")[0].laid_tokens > 0


def test_a_request_that_is_cancelled_while_it_lays_the_base_ends_and_frees_the_lock(line: Line, tmp_path: Path) -> None:
    line.hangs = True
    ended: list[type[BaseException]] = []

    def ask() -> None:
        try:
            line.prepared("aa")
        except Cancelled as error:
            ended.append(type(error))

    thread = threading.Thread(target=ask)
    thread.start()
    while not line.asked:
        thread.join(0.001)
    assert line.asked[0].told.wait(WAIT_S)
    line.running.cancel("job-aa")
    thread.join(WAIT_S)
    assert ended == [Cancelled]
    assert line.house.engine.saves == 0
    assert Line(tmp_path / "kv").prepared("bb")[0].laid_tokens > 0


def test_a_request_that_is_cancelled_while_it_waits_for_another_s_base_goes_on_at_once(
    line: Line, tmp_path: Path
) -> None:
    other = Line(tmp_path / "kv")
    done: list[Found] = []
    with other.house.store.making(NAME, 0, threading.Event()) as mine:
        assert mine
        thread = threading.Thread(target=lambda: done.append(line.prepared("aa")[0]))
        thread.start()
        thread.join(0.1)
        assert done == []
        line.running.cancel("job-aa")
        thread.join(WAIT_S)
    assert [found.brought.source for found in done] == [Source.NOTHING]
    assert line.asked == []


def test_a_base_that_is_made_while_one_looks_for_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Line(tmp_path / "kv"), Line(tmp_path / "kv")
    bring = Caches.bring

    def slow(caches: Caches, slot: Slot, want: Want, stopped: threading.Event) -> Brought:
        brought = bring(caches, slot, want, stopped)
        monkeypatch.setattr(Caches, "bring", bring)
        first.prepared("aa")
        first.describe()
        return brought

    monkeypatch.setattr(Caches, "bring", slow)
    found, reused, _ = second.prepared("bb")
    assert (found.brought.source, reused) == (Source.BASE, BASE_TOKENS)
    assert (len(first.asked), len(second.asked)) == (1, 0)


def test_many_that_start_at_once_prefill_one_base_once(tmp_path: Path) -> None:
    lines = [Line(tmp_path / "kv", count=4) for _ in range(2)]
    over = threading.Event()
    found: list[tuple[Found, int, int]] = []

    def keep() -> None:
        while not over.is_set():
            for each in lines:
                each.describe()
                each.house.table.wait(0.005)

    keeper = threading.Thread(target=keep)
    asking = [
        threading.Thread(target=lambda n=number: found.append(lines[n % 2].prepared(f"{n:x}"))) for number in range(8)
    ]
    for thread in (keeper, *asking):
        thread.start()
    for thread in asking:
        thread.join(WAIT_S)
    over.set()
    keeper.join(WAIT_S)
    assert len(found) == 8
    assert sorted(each.brought.source.value for each, _, _ in found) == ["base"] * 7 + ["nothing"]
    assert sum(len(each.asked) for each in lines) == 1
    assert {reused for _, reused, _ in found} == {BASE_TOKENS}
