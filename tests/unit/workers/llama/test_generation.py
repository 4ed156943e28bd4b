"""An answer's connection: what it gives, how it breaks, and that it can be cancelled at any time."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from select import select
from typing import Any, NamedTuple, Protocol

import pytest

from infra.errors import (
    Cancelled,
    DeadlinePassed,
    EngineLost,
    EngineRefused,
    EngineTimeout,
    PromptTooLong,
    TooSlow,
)
from scheduler.contract import Limits, StopReason, TextDelta
from workers.llama.client import UNLIMITED, AnswerRules, Deadlines, End, EngineClient, Event, Generation, Prompt
from workers.llama.pulse import Pulse

pytestmark = pytest.mark.unit

PATIENT = Deadlines(first_token_s=30, between_tokens_s=30, answer_s=30)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PROGRESS = b'data: {"choices":[{"delta":{}}],"prompt_progress":{"total":9,"cache":4,"processed":4}}\n\n'
HELLO = b'data: {"choices":[{"delta":{"content":"hello"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"

Script = Callable[[socket.socket], None]


def chunked(*payloads: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(payload), payload) for payload in payloads)


def status(code: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (code, len(body), body)


class Engine:
    """Accepts one connection, reads the request, then does what its script says; notes when the client is gone."""

    def __init__(self, script: Script) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.request = b""
        self.asked = threading.Event()
        self.left = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(script,))
        self._thread.start()

    def _serve(self, script: Script) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            with connection:
                while not self.request.endswith(b"the body") and (received := connection.recv(65536)):
                    self.request += received
                self.asked.set()
                script(connection)
                while connection.recv(65536):
                    pass
        self.left.set()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@contextlib.contextmanager
def engine(script: Script) -> Iterator[Engine]:
    peer = Engine(script)
    try:
        yield peer
    finally:
        peer.close()


def sends(*payloads: bytes, then_closes: bool = False) -> Script:
    def script(connection: socket.socket) -> None:
        for payload in payloads:
            connection.sendall(payload)
        if then_closes:
            connection.shutdown(socket.SHUT_RDWR)

    return script


class Peer(Protocol):
    """Whose address is known."""

    @property
    def url(self) -> str: ...


@contextlib.contextmanager
def generation(
    peer: Peer,
    deadlines: Deadlines = PATIENT,
    stops: tuple[str, ...] = (),
    pulse: Pulse | None = None,
    limits: Limits = UNLIMITED,
    waited_s: float = 0.0,
    rest_s: float = 0.0,
) -> Iterator[Generation]:
    client = EngineClient(peer.url, "secret", deadlines, pulse, rest_s)
    rules = AnswerRules(context_tokens=100, stop_sequences=stops)
    with client.generate(b"the body", rules, limits, waited_s) as answer:
        yield answer
    client.close()


def cancel_when(moment: threading.Event, answer: Generation) -> None:
    assert moment.wait(10)
    answer.cancel()


def test_an_answer_from_its_prompt_to_its_end() -> None:
    with engine(sends(OK, chunked(PROGRESS, HELLO, LAST, DONE))) as peer, generation(peer) as answer:
        events = list(answer)

    assert events[:2] == [Prompt(9, 4), TextDelta("hello")]
    assert isinstance(events[2], End)
    assert b"POST /v1/chat/completions HTTP/1.1\r\n" in peer.request
    assert b"Authorization: Bearer secret\r\n" in peer.request


def test_events_may_be_cut_anywhere() -> None:
    stream = PROGRESS + HELLO + LAST + DONE
    pieces = [stream[start : start + 7] for start in range(0, len(stream), 7)]

    with engine(sends(OK, chunked(*pieces))) as peer, generation(peer) as answer:
        assert [type(event) for event in answer] == [Prompt, TextDelta, End]


def test_a_stop_sequence_ends_the_answer_and_frees_the_engine() -> None:
    with engine(sends(OK, chunked(PROGRESS, HELLO))) as peer, generation(peer, stops=("ll",)) as answer:
        events = list(answer)

        assert peer.left.wait(10)

    assert events[1] == TextDelta("he")
    assert isinstance(events[2], End)
    assert events[2].stop_reason is StopReason.STOP_SEQUENCE


def test_leaving_half_way_closes_the_connection() -> None:
    with engine(sends(OK, chunked(PROGRESS, HELLO))) as peer:
        with generation(peer) as answer:
            assert next(iter(answer)) == Prompt(9, 4)

        assert peer.left.wait(10)


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("headers", [OK, OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")])
def test_a_left_answer_holds_no_socket_even_while_something_refers_to_it(headers: bytes, cancelled: bool) -> None:
    with engine(sends(headers, chunked(PROGRESS, HELLO))) as peer:
        with generation(peer) as answer:
            events = iter(answer)
            next(events)
            connected = answer._exchange._socket
            assert connected is not None
            if cancelled:
                answer.cancel()

        assert connected.fileno() == -1
        del events


def test_cancelled_before_it_starts_it_never_reaches_the_engine() -> None:
    with engine(sends()) as peer, generation(peer) as answer:
        answer.cancel()
        with pytest.raises(Cancelled):
            list(answer)

    assert peer.request == b""


def test_cancelled_while_waiting_for_the_slot() -> None:
    with engine(sends()) as peer, generation(peer) as answer:
        canceller = threading.Thread(target=cancel_when, args=(peer.asked, answer))
        canceller.start()
        with pytest.raises(Cancelled):
            list(answer)
        canceller.join()

        assert peer.left.wait(10)


def test_cancelled_while_reading() -> None:
    with engine(sends(OK, chunked(PROGRESS, HELLO))) as peer, generation(peer) as answer:
        events = iter(answer)
        assert [next(events), next(events)] == [Prompt(9, 4), TextDelta("hello")]
        canceller = threading.Timer(0, answer.cancel)
        canceller.start()
        with pytest.raises(Cancelled):
            next(events)
        canceller.join()

        assert peer.left.wait(10)


def test_after_a_cancel_nothing_that_is_already_here_comes_out() -> None:
    more, sent = threading.Event(), threading.Event()

    def script(connection: socket.socket) -> None:
        connection.sendall(OK + chunked(PROGRESS))
        assert more.wait(10)
        connection.sendall(chunked(HELLO))
        sent.set()

    with engine(script) as peer, generation(peer) as answer:
        events = answer.together()
        assert next(events) == [Prompt(9, 4)]
        more.set()
        assert sent.wait(10)
        answer.cancel()
        with pytest.raises(Cancelled):
            next(events)


def test_a_cancel_after_the_end_does_nothing() -> None:
    with engine(sends(OK, chunked(PROGRESS, HELLO, LAST, DONE))) as peer:
        with generation(peer) as answer:
            assert list(answer)
        answer.cancel()


def test_a_prompt_that_does_not_fit_is_told_with_its_numbers() -> None:
    body = b'{"error":{"code":400,"message":"m","type":"exceed_context_size_error","n_prompt_tokens":120,"n_ctx":100}}'

    with engine(sends(status(400, body))) as peer, generation(peer) as answer, pytest.raises(PromptTooLong) as caught:
        list(answer)

    assert (caught.value.prompt_tokens, caught.value.maximum_tokens) == (120, 100)


@pytest.mark.parametrize(
    "body", [b'{"error":{"message":"bad\\nat x","code":400}}', b'{"error":"bad"}', b"<html>", b"7"]
)
def test_another_refusal_keeps_its_status_and_one_line_of_words(body: bytes) -> None:
    with engine(sends(status(400, body))) as peer, generation(peer) as answer, pytest.raises(EngineRefused) as caught:
        list(answer)

    assert caught.value.status == 400
    assert "\n" not in caught.value.message


def test_an_engine_that_still_loads_counts_as_lost() -> None:
    with engine(sends(status(503, b'{"error":{"message":"Loading model","code":503}}'))) as peer:  # noqa: SIM117
        with generation(peer) as answer, pytest.raises(EngineLost):
            list(answer)


@pytest.mark.parametrize("line", [b'data: {"error":{"code":500,"message":"out"}}\n\n', b'error: {"message":"out"}\n\n'])
def test_an_error_in_the_stream_is_a_refusal(line: bytes) -> None:
    with engine(sends(OK, chunked(PROGRESS, line))) as peer, generation(peer) as answer:  # noqa: SIM117
        with pytest.raises(EngineRefused, match="out"):
            list(answer)


@pytest.mark.parametrize(
    "sent",
    [b"", OK, OK + chunked(PROGRESS), OK + chunked(PROGRESS)[:-9], OK + chunked(PROGRESS, LAST) + b"0\r\n\r\n"],
    ids=["no headers", "no chunk", "half way", "inside a chunk", "ended without its last word"],
)
def test_an_answer_that_breaks_off_means_the_engine_is_lost(sent: bytes) -> None:
    with engine(sends(sent, then_closes=True)) as peer, generation(peer) as answer, pytest.raises(EngineLost):
        list(answer)


def test_something_that_is_no_json_means_the_engine_is_lost() -> None:
    with engine(sends(OK, chunked(b"data: {oops\n\n"))) as peer, generation(peer) as answer, pytest.raises(EngineLost):
        list(answer)


def test_an_engine_that_is_not_there_is_lost() -> None:
    with engine(sends()) as peer:
        peer.close()
        with generation(peer) as answer, pytest.raises(EngineLost, match="the connection to the engine broke;") as told:
            list(answer)
    assert "Error" not in told.value.message


@pytest.mark.parametrize(
    ("sent", "deadlines"),
    [
        (b"", Deadlines(0.05, 30, 30)),
        (OK + chunked(PROGRESS), Deadlines(0.05, 30, 30)),
        (OK + chunked(PROGRESS, HELLO), Deadlines(30, 0.05, 30)),
    ],
    ids=["for the slot", "before the first token", "between two"],
)
def test_silence_beyond_a_deadline_is_a_timeout(sent: bytes, deadlines: Deadlines) -> None:
    with engine(sends(sent)) as peer, generation(peer, deadlines) as answer, pytest.raises(EngineTimeout):
        list(answer)


@pytest.mark.parametrize("answer_s", [0.05, -1])
def test_an_answer_that_takes_too_long_in_all_is_late_and_not_tried_again(answer_s: float) -> None:
    sent = OK + chunked(PROGRESS, HELLO)
    late = Deadlines(30, 30, answer_s)
    with engine(sends(sent)) as peer, generation(peer, late) as answer, pytest.raises(DeadlinePassed) as raised:
        list(answer)
    assert raised.type is DeadlinePassed


@pytest.mark.parametrize(
    ("sent", "limits", "waited_s"),
    [
        (b"", Limits(first_token_s=0.05), 0),
        (OK + chunked(PROGRESS), Limits(first_token_s=0.05), 0),
        (OK + chunked(PROGRESS), Limits(first_token_s=30), 29.95),
        (OK + chunked(PROGRESS), Limits(first_token_s=30), 31),
        (OK + chunked(PROGRESS, HELLO), Limits(between_tokens_s=0.05), 0),
        (OK + chunked(PROGRESS, HELLO), Limits(first_token_s=30, between_tokens_s=0.05), 0),
    ],
)
def test_a_client_s_own_limits_end_the_answer_for_good(sent: bytes, limits: Limits, waited_s: float) -> None:
    with engine(sends(sent)) as peer, generation(peer, limits=limits, waited_s=waited_s) as answer:  # noqa: SIM117
        with pytest.raises(TooSlow):
            list(answer)


def test_a_client_s_limit_for_the_first_token_is_over_with_it() -> None:
    def speaks(connection: socket.socket) -> None:
        connection.sendall(OK + chunked(PROGRESS, HELLO))

    deadlines, limits = Deadlines(30, 0.1, 30), Limits(first_token_s=20)
    with engine(speaks) as peer, generation(peer, deadlines, limits=limits) as answer, pytest.raises(EngineTimeout):
        list(answer)


def test_a_working_engine_owes_a_sign_of_life_until_its_answer_is_over() -> None:
    pulse = Pulse()
    with engine(sends(OK + chunked(PROGRESS, HELLO, LAST, DONE))) as peer, generation(peer, pulse=pulse) as answer:
        assert pulse.silent_s() > 0
        list(answer)
    assert pulse.silent_s() == 0


def test_comment_lines_are_no_progress() -> None:
    def comments(connection: socket.socket) -> None:
        connection.sendall(OK + chunked(PROGRESS))
        connection.settimeout(0.01)
        while True:
            connection.sendall(chunked(b":\n\n"))
            with contextlib.suppress(TimeoutError):
                if not connection.recv(1):
                    return

    with engine(comments) as peer, generation(peer, Deadlines(0.1, 30, 30)) as answer, pytest.raises(EngineTimeout):
        list(answer)


def test_what_came_together_is_given_out_together_and_ahead_of_an_error() -> None:
    sent = OK + chunked(PROGRESS + HELLO + HELLO + b'data: {"error":{"code":400,"message":"out"}}\n\n')
    with engine(sends(sent)) as peer, generation(peer) as answer:
        events = answer.together()
        assert next(events) == [Prompt(9, 4), TextDelta("hello"), TextDelta("hello")]
        with pytest.raises(EngineRefused):
            next(events)


class Rests:
    """Takes the place of `sleep`: notes for how long it should have slept, and does what was asked for meanwhile."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.asked_s: list[float] = []
        self.meanwhile = meanwhile

    def __call__(self, seconds: float) -> None:
        self.asked_s.append(seconds)
        self.meanwhile()


def test_what_comes_while_it_rests_is_read_together_and_it_rests_neither_before_a_token_nor_after_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turn = threading.Semaphore(0)
    sent = threading.Semaphore(0)

    def script(connection: socket.socket) -> None:
        connection.sendall(OK)
        for payload in (PROGRESS, HELLO, HELLO + HELLO + HELLO, LAST, DONE):
            assert turn.acquire(timeout=10)
            connection.sendall(chunked(payload))
            sent.release()

    def go_on() -> None:
        turn.release()
        assert sent.acquire(timeout=10)

    rests = Rests(go_on)
    monkeypatch.setattr("workers.llama.generation.sleep", rests)
    with engine(script) as peer, generation(peer, rest_s=7) as answer:
        events = answer.together()
        turn.release()
        assert next(events) == [Prompt(9, 4)]
        turn.release()
        assert next(events) == [TextDelta("hello")]
        assert rests.asked_s == []
        assert next(events) == [TextDelta("hello")] * 3
        assert [0 < asked_s <= 7 for asked_s in rests.asked_s] == [True]
        turn.release()  # for the one after LAST, which nobody rests after
        assert [type(event) for event in next(events)] == [End]
    assert len(rests.asked_s) == 2


def test_its_rests_grow_with_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    turn = threading.Semaphore(0)

    def script(connection: socket.socket) -> None:
        connection.sendall(OK + chunked(PROGRESS, HELLO))
        for payload in (HELLO, HELLO, HELLO, HELLO, LAST + DONE):
            assert turn.acquire(timeout=10)
            connection.sendall(chunked(payload))

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        asked_s.append(seconds)
        turn.release()

    asked_s: list[float] = []
    monkeypatch.setattr("workers.llama.generation.sleep", sleep)
    monkeypatch.setattr("workers.llama.generation.monotonic", lambda: now_s)
    with engine(script) as peer, generation(peer, rest_s=4) as answer:
        assert sum(isinstance(event, TextDelta) for event in answer) == 5
    assert asked_s == [0.5, 0.5, 1, 2, 4]


def test_it_rests_for_half_of_what_its_limits_leave_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    rests = Rests()
    monkeypatch.setattr("workers.llama.generation.sleep", rests)
    with engine(sends(OK + chunked(PROGRESS, HELLO))) as peer:  # noqa: SIM117
        with generation(peer, limits=Limits(between_tokens_s=0.05), rest_s=7) as answer, pytest.raises(TooSlow):
            list(answer)
    assert [0 < asked_s <= 0.025 for asked_s in rests.asked_s] == [True]


def test_a_cancel_while_it_rests_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(sends(OK + chunked(PROGRESS, HELLO))) as peer, generation(peer, rest_s=1) as answer:
        rests = Rests(answer.cancel)
        monkeypatch.setattr("workers.llama.generation.sleep", rests)
        with pytest.raises(Cancelled):
            list(answer)
    assert len(rests.asked_s) == 1


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_cancel_while_it_connects_sends_nothing(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    class Cancelling(socket.socket):
        def connect(self, address: Any) -> None:
            if not late:
                answer.cancel()
            super().connect(address)
            if late:
                answer.cancel()

    with engine(sends()) as peer, generation(peer) as answer:
        monkeypatch.setattr("workers.llama.exchange.socket.socket", Cancelling)
        with pytest.raises(Cancelled):
            list(answer)
        answer._exchange.close()
        assert peer.left.wait(10)
    assert peer.request == b""


class Unheard(NamedTuple):
    url: str


@contextlib.contextmanager
def unheard() -> Iterator[Unheard]:
    """Somebody who takes no connections any more: one that is begun is neither made nor refused."""
    with socket.socket() as listening, contextlib.ExitStack() as waiting:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        while True:
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listening.getsockname())
            if not select([], [one], [], 0.2)[1]:
                yield Unheard(f"http://127.0.0.1:{listening.getsockname()[1]}")
                return


def test_connecting_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.llama.generation.CONNECT_TIMEOUT_S", 0.05)
    with unheard() as peer, generation(peer) as answer, pytest.raises(EngineTimeout):
        list(answer)


def test_a_cancel_ends_a_connection_that_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connecting(socket.socket):
        def connect(self, address: Any) -> None:
            begun.set()
            super().connect(address)

    begun = threading.Event()
    monkeypatch.setattr("workers.llama.exchange.socket.socket", Connecting)
    with unheard() as peer, generation(peer) as answer:
        cancelling = threading.Thread(target=cancel_when, args=(begun, answer))
        cancelling.start()
        with pytest.raises(Cancelled):
            list(answer)
        cancelling.join()


def test_an_answer_that_is_announced_is_waited_for() -> None:
    announced = threading.Event()

    def script(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" + OK[:12])
        announced.set()
        connection.settimeout(0.05)
        with contextlib.suppress(TimeoutError):  # until the first part was read, or long enough for it
            connection.recv(1)
        connection.sendall(OK[12:] + chunked(PROGRESS, HELLO, LAST, DONE))

    with engine(script) as peer, generation(peer) as answer:
        assert [type(event) for event in answer] == [Prompt, TextDelta, End]
    assert announced.is_set()


def test_a_refusal_whose_body_ends_with_the_connection_is_one_all_the_same() -> None:
    told = b'HTTP/1.1 400 X\r\nConnection: close\r\n\r\n{"error":{"message":"bad","code":400}}'
    with engine(sends(told, then_closes=True)) as peer, generation(peer) as answer:  # noqa: SIM117
        with pytest.raises(EngineRefused, match="bad"):
            list(answer)


@pytest.mark.parametrize("sent", [chunked(b'{"error":')[:-2], b"", b'9\r\n{"er'])
def test_a_refusal_that_is_torn_off_means_the_engine_is_lost(sent: bytes) -> None:
    head = b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n"
    with engine(sends(head + sent, then_closes=True)) as peer, generation(peer) as answer, pytest.raises(EngineLost):
        list(answer)


def test_what_came_ahead_of_a_broken_chunk_is_given_out() -> None:
    with engine(sends(OK + chunked(PROGRESS, HELLO) + b"no chunk\r\n")) as peer, generation(peer) as answer:
        come: list[Event] = []
        with pytest.raises(EngineLost):
            come.extend(answer)
    assert come == [Prompt(9, 4), TextDelta("hello")]


def test_a_line_without_an_end_means_the_engine_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.llama.generation.LONGEST_LINE_BYTES", 1000)
    more = threading.Event()

    def script(connection: socket.socket) -> None:
        connection.sendall(OK + chunked(PROGRESS + b"data: " + b"x" * 2000))
        assert more.wait(10)
        connection.sendall(chunked(b"x"))

    with engine(script) as peer, generation(peer) as answer:
        events = iter(answer)
        assert next(events) == Prompt(9, 4)
        more.set()
        with pytest.raises(EngineLost, match="a line without an end"):
            next(events)
