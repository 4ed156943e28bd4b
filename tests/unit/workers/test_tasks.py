"""One ticket, one answer: from the claim to the last delta, whatever the engine does."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
import structlog

from infra.errors import BrokerDown, EngineGarbled, EngineLost, EngineRefused
from infra.observability import metrics
from scheduler.claims import Claims, SlotKept
from scheduler.contract import (
    ClaimedJob,
    Delta,
    Failed,
    Finished,
    GenerationRequest,
    Kind,
    Message,
    Rates,
    Started,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingDelta,
    Tool,
    ToolCall,
    decode_deltas,
)
from scheduler.packing import pack
from scheduler.policy.line import Cached, Rules
from scheduler.stream import Append, Retries
from workers.attempts import Attempts
from workers.caches import Caches
from workers.llama.client import End, Prompt
from workers.meter import Meter, WriteBudget
from workers.running import Running
from workers.serving import Serving
from workers.slots import SlotTable
from workers.tasks import Work

pytestmark = pytest.mark.unit

REQUEST = GenerationRequest(model="m", messages=(), max_tokens=100)
BODY = pack(REQUEST).body
CONTEXT, LIMIT = 1000, 900
END = End(
    stop_reason=StopReason.END_TURN,
    stop_sequence=None,
    prompt_tokens=10,
    cached_tokens=4,
    output_tokens=2,
    prefill_ms=1,
    decode_ms=1,
)


class Lines:
    """A line of jobs, and the books in which their answers are settled; counts the claims.

    `held` says what the first claims meet: a slot kept for so long.
    """

    def __init__(
        self, *bodies: bytes, reserve: bool = False, kind: Kind = Kind.MAIN, held_ms: tuple[int, ...] = ()
    ) -> None:
        self.jobs = [ClaimedJob(f"job-{n}", 1, 5, "me", "c", kind, 7, reserve, body) for n, body in enumerate(bodies)]
        self.claims = 0
        self.rules = Rules()
        self.told: list[tuple[Sequence[Cached], float]] = []
        self.held_ms = list(held_ms)
        self.asked: list[tuple[int, int]] = []
        self.settled: list[tuple[str, float, int | None, bool]] = []
        self.broken = False
        self.attempts_left = 0
        self.away = 0
        self.said: list[Delta] = []
        self.tickets: list[str] = []
        self.spared: list[bool] = []

    def past(self, _: ClaimedJob) -> list[Delta]:
        return self.said

    def give_up(self, _: ClaimedJob, *, spared: bool) -> bool:
        self.away -= 1
        if self.away >= 0:
            raise BrokerDown("away", retry_after_s=5)
        self.spared.append(spared)
        self.attempts_left -= 1
        return self.attempts_left >= 0

    def claim(self, slots: int, tickets: int, cached: Sequence[Cached], token_ms: float) -> ClaimedJob | None:
        self.claims += 1
        self.asked.append((slots, tickets))
        self.told.append((cached, token_ms))
        if self.held_ms:
            raise SlotKept(self.held_ms.pop(0))
        return self.jobs.pop(0) if self.jobs else None

    def settle(self, job: ClaimedJob, used_ms: float, output_tokens: int | None, *, in_tool_call: bool) -> None:
        if self.broken:
            raise BrokerDown("away", retry_after_s=5)
        self.settled.append((job.id, used_ms, output_tokens, in_tool_call))


def chances(lines: Lines) -> Attempts:
    return Attempts(cast(Claims, lines), lambda job: lines.tickets.append(job.id))


class Pen(Append):
    def __init__(self) -> None:
        self.written: list[Delta] = []
        self.entries: list[int] = []  # how many deltas each has
        self.finals: list[str] = []

    def __call__(self, job: ClaimedJob, sequence: int, payload: bytes, final: str) -> bool:
        assert (job.attempt, sequence) == (1, len(self.entries) + 1)
        deltas = decode_deltas(payload)
        self.written += deltas
        self.entries.append(len(deltas))
        self.finals += [final] if final else []
        return True


class Said:
    """What an engine says: each event by itself, those of a tuple together."""

    def __init__(self, *events: object) -> None:
        self._events = events

    def together(self, asked: Callable[[], None]) -> Iterator[list[object]]:
        asked()
        for come in self._events:
            if isinstance(come, Exception):
                raise come
            yield list(come) if isinstance(come, tuple) else [come]


class Engine:
    """A serving worker whose engine says `events`; an exception among them is raised."""

    name = "w1"
    context_tokens, prompt_limit_tokens, model_hash = CONTEXT, LIMIT, "hash"

    def __init__(self, *events: object, usable: int = 1, asked: int | None = None) -> None:
        """`asked`: after a beginning of this answer the engine is asked for so many tokens."""
        self.asked = asked
        self.caches = Caches(SlotTable(1), cast(Any, None), None, Meter(), WriteBudget(1), "no store here")
        self.events = events
        self.usable = usable
        self.doubts = 0
        self.garbled: list[bool] = []

    def usable_slots(self) -> int:
        return self.usable

    def engine_bytes(self) -> int:
        return 5

    def count(self, request: GenerationRequest) -> int:
        blocks = [block for message in request.messages for block in message.content]
        return sum(len(block.text) for block in blocks if isinstance(block, TextBlock))

    def ends_with(self, _request: GenerationRequest, _text: str) -> bool:
        return True

    def said(self, *, garbled: bool) -> None:
        self.garbled.append(garbled)

    def doubt(self, _reason: str) -> None:
        self.doubts += 1

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.rates.prefill_tokens_per_s

    @property
    def rates(self) -> Rates:
        return self.caches.meter.rates

    @contextmanager
    def generation(self, request: GenerationRequest, slot: int, waited_s: float, traceparent: str) -> Iterator["Said"]:
        assert (waited_s >= 0, traceparent) == (True, "")
        assert (request if self.asked is None else request.max_tokens, slot) == (self.asked or REQUEST, 0)
        yield Said(*self.events)


def run(engine: Engine, lines: Lines | None = None, pen: Pen | None = None) -> Pen:
    pen = pen or Pen()
    with Retries() as retries:
        lines = lines or Lines(BODY)
        serving = cast(Serving, cast(Any, engine))
        work = Work(cast(Claims, lines), pen, retries, Running(), serving, chances(lines))
        work.generate("ticket", "me", 5)
    assert not any(slot.busy for slot in engine.caches.table.snapshot())
    return pen


def test_the_slot_is_free_before_the_client_hears_of_the_end() -> None:
    """It may ask again at once."""
    engine = Engine(prompt(), TextDelta("a"), END)
    busy: list[bool] = []

    class Watching(Pen):
        def __call__(self, job: ClaimedJob, sequence: int, payload: bytes, final: str) -> bool:
            if final:
                busy.extend(slot.busy for slot in engine.caches.table.snapshot())
            return super().__call__(job, sequence, payload, final)

    run(engine, pen=Watching())
    assert busy == [False]


def prompt(tokens: int = 10) -> Prompt:
    return Prompt(total_tokens=tokens, cached_tokens=4)


def failed(pen: Pen) -> Failed:
    last = pen.written[-1]
    assert isinstance(last, Failed)
    assert pen.finals == ["failed"]
    return last


def test_an_answer_goes_from_started_to_finished() -> None:
    engine = Engine(prompt(), TextDelta("a"), TextDelta("b"), END)
    pen = run(engine)
    assert pen.written[0] == Started("w1", 0, 1, 7, 10, 4, engine_run=engine.caches.run)
    assert pen.written[1:3] == [TextDelta("a"), TextDelta("b")]
    assert pen.written[3] == Finished(StopReason.END_TURN, None, 10, 4, 2, 1, 1, "hash", 5)
    assert pen.finals == ["done"]
    assert [(slot.conversation, slot.tokens) for slot in engine.caches.table.snapshot()] == [("c", 12)]


def test_what_the_engine_says_together_is_written_together_and_the_last_of_it_with_the_end() -> None:
    a, b, c = map(TextDelta, "abc")
    pen = run(Engine(prompt(), (a, b), a, (b, c, END)))
    assert pen.written[1:6] == [a, b, a, b, c]
    assert (pen.entries, pen.finals) == ([1, 2, 1, 3], ["done"])


def test_a_ticket_for_an_empty_line_does_nothing() -> None:
    assert run(Engine(prompt(), END), Lines()).written == []


def test_a_ticket_that_comes_while_the_engine_is_away_claims_nothing() -> None:
    lines = Lines(BODY)
    assert run(Engine(prompt(), END, usable=0), lines).written == []
    assert (lines.claims, len(lines.jobs)) == (0, 1)


def test_a_lost_engine_is_doubted_before_the_next_ticket_is_taken() -> None:
    engine = Engine(prompt(), TextDelta("a"), EngineLost("gone"))
    assert failed(run(engine)).code == "engine_lost"
    assert engine.doubts == 1


def test_an_engine_that_stops_without_an_end_is_an_error() -> None:
    assert failed(run(Engine(prompt(), TextDelta("a")))).code == "engine_lost"


@pytest.mark.parametrize(
    ("tokens", "reserve", "code"), [(901, False, "prompt_too_long"), (1001, True, "prompt_too_long")]
)
def test_a_prompt_over_its_limit_is_refused_with_both_numbers(tokens: int, reserve: bool, code: str) -> None:
    pen = run(Engine(prompt(tokens), END), Lines(BODY, reserve=reserve))
    assert failed(pen).code == code
    assert str(tokens) in failed(pen).message
    assert failed(pen).prompt_tokens == tokens


def test_a_compaction_request_may_use_the_reserve() -> None:
    assert run(Engine(prompt(901), END), Lines(BODY, reserve=True)).finals == ["done"]


def test_a_prompt_that_leaves_no_room_to_write_in_is_refused() -> None:
    pen = run(Engine(prompt(990), END), Lines(BODY, reserve=True))
    assert failed(pen).code == "no_room_for_output"


@pytest.mark.parametrize("body", [b"", b"not packed"])
def test_a_body_that_cannot_be_read_ends_the_job_and_not_the_worker(body: bytes) -> None:
    assert failed(run(Engine(prompt(), END), Lines(body))).code == "internal"


def test_an_unexpected_error_shows_nothing_of_itself() -> None:
    assert "secret" not in failed(run(Engine(prompt(), KeyError("secret")))).message


def refused() -> EngineRefused:
    return EngineRefused("the engine refused: secret", status=400)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyError("secret"), "together"),
        (ValueError("secret"), "together"),
        (EngineLost("the connection to the engine broke"), "the connection to the engine broke"),
        (refused(), "400"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_log_line_of_a_failed_job_names_the_cause_in_our_words_only(error: Exception, told: str) -> None:
    with structlog.testing.capture_logs() as logged:
        run(Engine(prompt(), error))
    (line,) = [line for line in logged if line["event"] == "job_failed"]
    assert line["error"] == type(error).__name__
    assert told in line["reason"]
    assert "secret" not in str(logged)


def test_the_log_line_of_a_body_of_another_form_holds_none_of_it() -> None:
    body = bytes(4) + b'j{"model": "m", "max_tokens": "secret", "messages": [{"role": "secret"}]}'
    with structlog.testing.capture_logs() as logged:
        assert failed(run(Engine(prompt(), END), Lines(body))).code == "internal"
    assert [line["error"] for line in logged if line["event"] == "job_failed"] == ["ValidationError"]
    assert "secret" not in str(logged)


def test_an_engine_s_refusal_reaches_the_client_in_the_engine_s_words() -> None:
    assert failed(run(Engine(refused()))).message == "the engine refused: secret"


def test_a_ticket_counts_as_work_from_before_its_claim() -> None:
    running, seen = Running(), list[bool]()

    class Watching(Lines):
        def claim(self, slots: int, tickets: int, cached: Sequence[Cached], token_ms: float) -> ClaimedJob | None:
            seen.append(running.wait_idle(0))
            return super().claim(slots, tickets, cached, token_ms)

    with Retries() as retries:
        lines = Watching()
        serving = cast(Serving, cast(Any, Engine()))
        work = Work(cast(Claims, lines), Pen(), retries, running, serving, chances(lines))
        work.generate("ticket", "me", 5)
    assert seen == [False]
    assert running.wait_idle(0)


# --- slots that are kept, and accounts ------------------------------------------------------------------------------


def work(engine: Engine, lines: Lines, running: Running | None = None) -> Pen:
    pen = Pen()
    with Retries() as retries:
        serving = cast(Serving, cast(Any, engine))
        made = Work(cast(Claims, lines), pen, retries, running or Running(), serving, chances(lines))
        made.generate("ticket", "me", 5)
    return pen


def test_a_ticket_waits_while_a_slot_is_kept_and_then_takes_its_job() -> None:
    lines = Lines(BODY, held_ms=(1, 1))
    assert work(Engine(prompt(), END, usable=3), lines).finals == ["done"]
    assert lines.asked == [(3, 1)] * 3
    assert lines.told == [((), 1000 / Rates().prefill_tokens_per_s)] * 3


def test_a_ticket_that_waits_looks_again_at_once_when_something_changes() -> None:
    running = Running()

    class Changing(Lines):
        def claim(self, slots: int, tickets: int, cached: Sequence[Cached], token_ms: float) -> ClaimedJob | None:
            running.change()  # a word that comes between the claim and the wait
            return super().claim(slots, tickets, cached, token_ms)

    lines = Changing(BODY, held_ms=(3_600_000,))
    assert work(Engine(prompt(), END), lines, running).finals == ["done"]
    assert lines.claims == 2


def test_a_ticket_that_waits_gives_up_when_the_worker_takes_none_any_more() -> None:
    engine, running = Engine(prompt(), END), Running()

    class Leaving(Lines):
        def claim(self, slots: int, tickets: int, cached: Sequence[Cached], token_ms: float) -> ClaimedJob | None:
            engine.usable = 0
            running.change()
            return super().claim(slots, tickets, cached, token_ms)

    lines = Leaving(BODY, held_ms=(3_600_000,))
    assert work(engine, lines, running).written == []
    assert (lines.claims, len(lines.jobs)) == (1, 1)


def test_an_answer_is_settled_before_the_client_hears_of_the_end() -> None:
    """It may ask again at once, and its next claim goes by what it has had."""
    lines = Lines(BODY)
    told: list[int] = []

    class Watching(Pen):
        def __call__(self, job: ClaimedJob, sequence: int, payload: bytes, final: str) -> bool:
            if final:
                told.append(len(lines.settled))
            return super().__call__(job, sequence, payload, final)

    run(Engine(prompt(), TextDelta("a"), END), lines, Watching())
    assert told == [1]
    ((job_id, used_ms, output_tokens, in_tool_call),) = lines.settled
    assert (job_id, output_tokens, in_tool_call) == ("job-0", 2, False)
    assert used_ms == pytest.approx(6 + 2 / 30 * 1000)  # 10 tokens less 4 cached at 1000 a second, and 2 at 30


@pytest.mark.parametrize(
    "events",
    [(EngineLost("gone"),), (prompt(), TextDelta("a"), EngineLost("gone")), (prompt(), KeyError("x")), (prompt(901),)],
    ids=["before", "amid", "unexpected", "refused"],
)
def test_an_answer_that_fails_is_settled_once_and_nothing_is_learnt(events: tuple[object, ...]) -> None:
    lines = Lines(BODY)
    failed(run(Engine(*events), lines))
    (settled,) = lines.settled
    assert settled[2:] == (None, False)
    assert settled[1] < 50


def test_a_body_that_cannot_be_read_is_settled_as_nothing_used() -> None:
    lines = Lines(b"not packed")
    run(Engine(prompt(), END), lines)
    assert lines.settled == [("job-0", 0.0, None, False)]


def test_a_broker_that_is_away_at_the_settling_costs_no_answer() -> None:
    lines = Lines(BODY)
    lines.broken = True
    assert run(Engine(prompt(), END), lines).finals == ["done"]


# --- another attempt --------------------------------------------------------------------------------------------------


def test_an_answer_lost_with_its_engine_waits_for_another_attempt_and_the_client_hears_nothing() -> None:
    lines = Lines(BODY)
    lines.attempts_left = 1
    pen = work(Engine(prompt(), TextDelta("half"), EngineLost("gone")), lines)
    assert pen.finals == []
    assert not any(isinstance(delta, Failed) for delta in pen.written)
    assert lines.tickets == ["job-0"]


@pytest.mark.parametrize(
    ("events", "attempts_left", "outcome"),
    [((prompt(), END), 0, "done"), ((EngineLost("gone"),), 1, "again"), ((EngineLost("gone"),), 0, "failed")],
)
def test_each_attempt_is_counted_once_by_how_it_ended(
    events: tuple[object, ...], attempts_left: int, outcome: str
) -> None:
    def counted() -> dict[str, float]:
        return {one: metrics.ATTEMPTS.labels(one)._value.get() for one in ("done", "again", "stopped", "failed")}

    lines, before = Lines(BODY), counted()
    lines.attempts_left = attempts_left
    work(Engine(*events), lines)
    assert {one: n - before[one] for one, n in counted().items() if n != before[one]} == {outcome: 1}


@pytest.mark.parametrize(("away", "finals"), [(59, []), (60, ["failed"])])
def test_a_broker_that_is_away_for_less_than_half_a_minute_costs_no_attempt(away: int, finals: list[str]) -> None:
    lines, rested = Lines(BODY), list[float]()
    lines.attempts_left, lines.away = 1, away
    pen = Pen()
    with Retries() as retries:
        attempts = Attempts(cast(Claims, lines), lambda job: lines.tickets.append(job.id), rested.append)
        serving = cast(Serving, cast(Any, Engine(prompt(), TextDelta("half"), EngineLost("gone"))))
        Work(cast(Claims, lines), pen, retries, Running(), serving, attempts).generate("ticket", "me", 5)
    assert (pen.finals, sum(rested)) == (finals, away / 2)
    assert lines.tickets == ([] if finals else ["job-0"])


def test_after_the_last_attempt_the_client_is_told() -> None:
    lines = Lines(BODY)
    pen = work(Engine(EngineLost("gone")), lines)
    assert (pen.finals, lines.tickets) == (["failed"], [])


def test_a_call_that_was_told_is_not_made_again() -> None:
    lines = Lines(BODY)
    lines.said = [Started("w0", 1, 1, 0, 10, 4), TextDelta("I look."), ToolCall("t1", "Bash", "{}")]
    pen = work(Engine(EngineLost("must not be asked")), lines)
    again, last = pen.written
    assert again == Started("w0", 1, 1, 0, 10, 4)
    assert isinstance(last, Finished)
    assert (last.stop_reason, last.prompt_tokens, last.cached_tokens) == (StopReason.TOOL_USE, 10, 4)
    assert last.output_tokens > 0


HALF: list[Delta] = [Started("w0", 1, 1, 0, 10, 4), TextDelta("a" * 30)]


def went_on(*events: object) -> tuple[Pen, Lines, Engine]:
    """The attempt after one that has told 30 tokens of 100."""
    message = Message(role="user", content=(TextBlock(text="go on"),))
    body = pack(REQUEST.model_copy(update={"messages": (message,)})).body
    lines, engine = Lines(body), Engine(*events, asked=70)
    lines.said = list(HALF)
    return work(engine, lines), lines, engine


def test_an_answer_goes_on_after_what_was_told() -> None:
    pen, *_ = went_on(prompt(43), TextDelta("b"), END)
    assert [delta for delta in pen.written if isinstance(delta, TextDelta)] == [TextDelta("b")]
    last = pen.written[-1]
    assert isinstance(last, Finished)
    assert (last.prompt_tokens, last.output_tokens) == (10, 32)


def test_how_long_an_answer_is_is_learnt_of_all_of_it_and_charged_for_what_this_attempt_made() -> None:
    _, lines, engine = went_on(prompt(43), TextDelta("b"), END)
    ((_, used_ms, learnt, _),) = lines.settled
    assert learnt == 30 + END.output_tokens
    rates = engine.caches.meter.rates
    new_tokens = 43 - 4
    used_s = new_tokens / rates.prefill_tokens_per_s + END.output_tokens / rates.decode_tokens_per_s
    assert used_ms == pytest.approx(1000 * used_s)


def test_an_answer_that_goes_on_near_the_windows_end_is_not_refused_for_its_own_length() -> None:
    pen, *_ = went_on(prompt(CONTEXT - 2), TextDelta("b"), END)
    assert pen.finals == ["done"]


def test_an_answer_whose_beginning_fills_the_window_ends_with_it() -> None:
    pen, *_ = went_on(prompt(CONTEXT + 1), END)
    last = pen.written[-1]
    assert isinstance(last, Finished)
    assert (last.stop_reason, last.output_tokens) == (StopReason.WINDOW, 30)


@pytest.mark.parametrize("again", [EngineGarbled("!!!!"), None])
def test_whether_an_answer_was_garbage_is_told_and_garbage_is_not_tried_again(again: Exception | None) -> None:
    engine = Engine(prompt(3), TextDelta("!"), *([again] if again else [END]))
    lines = Lines(BODY)
    pen = run(engine, lines)
    assert engine.garbled == [again is not None]
    assert (engine.caches.table.slots[0].held is None) is (again is not None)  # what it comes from is not saved
    assert pen.finals == ["failed" if again else "done"]


# --- answers that are made again --------------------------------------------------------------------------------------

TOLD: tuple[Delta, ...] = (Started("w0", 0, 1, 0, 10, 4), TextDelta("I look."))
CALLED = replace(END, stop_reason=StopReason.TOOL_USE, output_tokens=9)


class Forgetful(Engine):
    """It ends at once after the beginning of an answer, and knows the whole one when it is asked from the start.
    `together`: it says all that in one piece."""

    together = False

    def ends_with(self, _: GenerationRequest, __: str) -> bool:
        return True

    @contextmanager
    def generation(self, request: GenerationRequest, slot: int, waited_s: float, traceparent: str) -> Iterator[Said]:
        assert (slot, waited_s, traceparent) == (0, 0.0, "")  # its client has had its first token
        events = (prompt(), END) if request.messages[-1].role == "assistant" else self.events
        yield Said(events) if self.together else Said(*events)


def made_again(temperature: float | None, *events: object, together: bool = False) -> Pen:
    hello = Message(role="user", content=(TextBlock(text="hello"),))
    bash = Tool(name="Bash", input_schema={"type": "object"})
    asked = GenerationRequest(model="m", messages=(hello,), max_tokens=100, tools=(bash,), temperature=temperature)
    lines = Lines(pack(asked).body)
    lines.said = [*TOLD]
    engine = Forgetful(*events)
    engine.together = together
    pen = run(engine, lines)
    assert len(lines.settled) == 1
    return pen


@pytest.mark.parametrize("together", [False, True])
def test_what_was_said_ahead_of_a_failure_is_told_though_they_came_together(together: bool) -> None:
    """The attempt that led nowhere has begun, and says so; and what of the next one stands ahead of its failure."""
    pen = made_again(0, prompt(), TextDelta("I look."), END, together=together)
    assert [type(delta) for delta in pen.written] == [Started, Finished]
    pen = made_again(0, prompt(), ThinkingDelta("hm"), TextDelta("other"), END, together=together)
    assert [type(delta) for delta in pen.written] == [Started, ThinkingDelta, Failed]


@pytest.mark.parametrize("end", [(END,), (ToolCall("t", "Bash", "{}"), CALLED)], ids=["text", "call"])
def test_an_answer_whose_call_may_be_lost_is_made_again_where_it_says_the_same(end: tuple[object, ...]) -> None:
    pen = made_again(0, prompt(), TextDelta("I "), TextDelta("look."), *end)
    assert [type(delta) for delta in pen.written] == [Started, *[ToolCall] * (len(end) - 1), Finished]
    assert pen.finals == ["done"]
    last = pen.written[-1]
    assert isinstance(last, Finished)
    assert (last.prompt_tokens, last.output_tokens) == (10, 2 if len(end) == 1 else 9)


@pytest.mark.parametrize(
    ("temperature", "text"), [(0, "I see."), (1.0, "I look."), (None, "I look.")], ids=["other", "sampled", "unsaid"]
)
def test_where_it_says_something_else_or_may_the_client_asks_again(temperature: float | None, text: str) -> None:
    pen = made_again(temperature, prompt(), TextDelta(text), END)
    assert "a tool call may have followed" in failed(pen).message
    assert not [delta for delta in pen.written if isinstance(delta, TextDelta)]
