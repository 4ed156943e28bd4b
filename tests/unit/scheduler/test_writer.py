"""Writing deltas: in order, ended whatever happens, safe against a broker that goes away."""

import threading
from collections.abc import Iterator
from queue import Queue

import pytest

from infra.errors import BrokerDown, Cancelled, EngineLost, Fenced, WorkerLost
from scheduler import stream
from scheduler.contract import (
    ClaimedJob,
    Delta,
    Failed,
    Finished,
    Kind,
    Started,
    StopReason,
    TextDelta,
    decode_deltas,
)
from scheduler.stream import Append, Retries, Writer

pytestmark = pytest.mark.unit

JOB = ClaimedJob("job", 1, 5, "agent", "conversation", Kind.MAIN, 0, False, b"")
STARTED = Started("w", 0, 1, 0, 1, 0)
FINISHED = Finished(StopReason.END_TURN, None, 1, 0, 1, 1, 1, "h", 1)
WAIT_S = 10

Written = tuple[int, list[Delta], str]


class Pen(Append):
    """Takes entries as the store would, unless told to refuse them or that the broker is away."""

    def __init__(self) -> None:
        self.entries: Queue[Written] = Queue()
        self.stands = True
        self.away = False
        self.tries: Queue[int] = Queue()

    def __call__(self, job: ClaimedJob, sequence: int, payload: bytes, final: str) -> bool:
        assert job is JOB
        self.tries.put(sequence)
        if self.away:
            raise BrokerDown("away")
        if self.stands:
            self.entries.put((sequence, decode_deltas(payload), final))
        return self.stands

    def next(self) -> Written:
        return self.entries.get(timeout=WAIT_S)

    def all(self) -> list[Written]:
        return [self.entries.get_nowait() for _ in range(self.entries.qsize())]


@pytest.fixture
def pen() -> Pen:
    return Pen()


@pytest.fixture
def retries(monkeypatch: pytest.MonkeyPatch) -> Iterator[Retries]:
    monkeypatch.setattr(stream, "RETRY_S", 0.001)
    with Retries() as retries:
        yield retries


def test_each_write_goes_out_at_once(pen: Pen, retries: Retries) -> None:
    with Writer(pen, retries, JOB) as writer:
        writer.write(STARTED)
        assert pen.all() == [(1, [STARTED], "")]
        assert writer.started == STARTED
        writer.write(TextDelta("a"), TextDelta("b"))
        assert pen.all() == [(2, [TextDelta("a"), TextDelta("b")], "")]
        writer.write(FINISHED)
        assert pen.all() == [(3, [FINISHED], "done")]
        assert writer.finished == FINISHED


def test_what_is_held_travels_with_the_end(pen: Pen, retries: Retries) -> None:
    with Writer(pen, retries, JOB) as writer:
        writer.hold(STARTED, TextDelta("a"))
        assert pen.all() == []
        writer.write(FINISHED)
    assert pen.all() == [(1, [STARTED, TextDelta("a"), FINISHED], "done")]


def test_nothing_to_write_is_not_written(pen: Pen, retries: Retries) -> None:
    with Writer(pen, retries, JOB) as writer:
        writer.write()
        writer.write(FINISHED)
    assert pen.all() == [(1, [FINISHED], "done")]


def test_leaving_without_an_end_writes_failed_after_what_was_held(pen: Pen, retries: Retries) -> None:
    with Writer(pen, retries, JOB) as writer:
        writer.write(STARTED)
        writer.hold(TextDelta("half"))
    (_, (half, last), final) = pen.all()[1]
    assert half == TextDelta("half")
    assert isinstance(last, Failed)
    assert (last.code, final) == ("internal", "failed")


UNWRITABLE = TextDelta("\ud83d")  # half a letter, as no engine's bytes decode to it


def test_what_cannot_be_written_fails_the_answer_and_does_not_keep_its_end_back(pen: Pen, retries: Retries) -> None:
    with Writer(pen, retries, JOB) as writer:
        writer.write(STARTED)
        with pytest.raises(ValueError, match="surrogates"):
            writer.write(UNWRITABLE)
    assert [(number, final) for number, _, final in pen.all()] == [(1, ""), (2, "failed")]


def test_what_was_held_and_cannot_be_written_does_not_keep_the_end_back(pen: Pen, retries: Retries) -> None:
    with Writer(pen, retries, JOB) as writer:
        writer.hold(STARTED, UNWRITABLE)
    [(_, [last], final)] = pen.all()
    assert (type(last), final) == (Failed, "failed")


def test_what_was_held_and_cannot_be_written_is_told_by_the_next_write(pen: Pen, retries: Retries) -> None:
    with Writer(pen, retries, JOB) as writer:
        writer.hold(UNWRITABLE)
        writer.send_kept()
        with pytest.raises(ValueError, match="surrogates"):
            writer.write(FINISHED)
    assert [final for _, _, final in pen.all()] == ["failed"]


def _end_with(pen: Pen, retries: Retries, error: BaseException) -> Failed:
    with pytest.raises(type(error)), Writer(pen, retries, JOB):
        raise error
    _, (last,), final = pen.next()
    assert final == "failed"
    assert isinstance(last, Failed)
    return last


def test_our_own_errors_speak_to_the_client(pen: Pen, retries: Retries) -> None:
    assert _end_with(pen, retries, EngineLost("gone", retry_after_s=3)) == Failed("engine_lost", "gone", 3)
    assert _end_with(pen, retries, WorkerLost("stopped")).code == "worker_lost"
    assert _end_with(pen, retries, Cancelled("left")).code == "cancelled"


def test_a_foreign_error_never_reaches_the_client(pen: Pen, retries: Retries) -> None:
    last = _end_with(pen, retries, KeyError("secret"))
    assert last.code == "internal"
    assert "secret" not in last.message


def test_a_refused_write_raises_fenced_and_nothing_more_is_written(pen: Pen, retries: Retries) -> None:
    pen.stands = False
    with pytest.raises(Fenced), Writer(pen, retries, JOB) as writer:
        writer.write(STARTED)
    assert pen.tries.qsize() == 1


def test_a_write_that_is_refused_when_it_is_tried_again_is_raised_by_the_next_one(pen: Pen, retries: Retries) -> None:
    writer = Writer(pen, retries, JOB)
    pen.away = True
    writer.write(STARTED)
    pen.stands, pen.away = False, False
    assert [pen.tries.get(timeout=WAIT_S) for _ in range(2)] == [1, 1]
    with pytest.raises(Fenced):  # either by the second try, or by this write
        writer.write(FINISHED)


def test_a_broker_that_is_away_for_a_while_costs_nothing(pen: Pen, retries: Retries) -> None:
    sent: list[Delta] = [STARTED, *[TextDelta(str(number)) for number in range(50)], FINISHED]
    with Writer(pen, retries, JOB) as writer:
        for number, delta in enumerate(sent):
            pen.away = 10 <= number < 40
            writer.write(delta)
    came: list[Delta] = []
    sequences = []
    while not came or came[-1] != FINISHED:
        sequence, deltas, _ = pen.next()
        came += deltas
        sequences.append(sequence)
    assert came == sent
    assert sequences == sorted(set(sequences))


@pytest.mark.parametrize("ended_well", [True, False])
def test_an_end_that_the_broker_did_not_take_is_sent_when_it_is_back(
    pen: Pen, retries: Retries, ended_well: bool
) -> None:
    with Writer(pen, retries, JOB) as writer:
        writer.write(STARTED)
        assert pen.next()[1] == [STARTED]
        pen.away = True
        if ended_well:
            writer.write(FINISHED)
    pen.away = False
    assert pen.next()[2] == ("done" if ended_well else "failed")


def test_a_broker_that_stays_away_ends_the_answer(pen: Pen, retries: Retries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BROKER_PATIENCE_S", 0)
    pen.away = True
    with pytest.raises(BrokerDown), Writer(pen, retries, JOB) as writer:
        writer.write(STARTED)


def test_a_job_whose_keys_have_run_out_is_given_up(pen: Pen, retries: Retries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STREAM_LIFETIME_MS", -1)
    pen.away = True
    with Writer(pen, retries, JOB) as writer:
        writer.write(FINISHED)
    assert pen.tries.qsize() == 1


def test_many_writers_at_once_lose_and_mix_nothing(retries: Retries) -> None:
    pens = [Pen() for _ in range(20)]

    def run(pen: Pen) -> None:
        with Writer(pen, retries, JOB) as writer:
            for number in range(100):
                writer.write(TextDelta(str(number)))
            writer.write(FINISHED)

    threads = [threading.Thread(target=run, args=(pen,)) for pen in pens]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pen in pens:
        written = [delta for _, deltas, _ in pen.all() for delta in deltas]
        assert written == [*[TextDelta(str(number)) for number in range(100)], FINISHED]
