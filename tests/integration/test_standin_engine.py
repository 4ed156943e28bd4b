"""The stand-in engine as a process: hang-ups, waiting, faults and its log."""

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.doubles.cluster import empty_model, json_lines
from tests.doubles.engine import EngineProcess
from tests.doubles.services import wait_for

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
Starter = Callable[..., EngineProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    running: list[EngineProcess] = []

    def begin(**standin: object) -> EngineProcess:
        engine = EngineProcess(tmp_path, empty_model(tmp_path), kind="standin", slots=2, standin=standin)
        running.append(engine)
        return engine.__enter__()

    yield begin
    for engine in running:
        engine.__exit__(None, None, None)


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "stream": True, "id_slot": 0, **fields}


def opened(engine: EngineProcess, text: str, **fields: Any) -> Any:
    """A stream, to be used in a `with`."""
    return engine.http.stream("POST", CHAT, json=body(text, return_progress=True, **fields))


def busy(engine: EngineProcess) -> list[bool]:
    return [slot["is_processing"] for slot in engine.http.get("/slots").json()]


def requests(engine: EngineProcess) -> list[dict[str, Any]]:
    return [line for line in json_lines(engine.folder / "engine.jsonl") if line["event"] == "request"]


def outcome(engine: EngineProcess) -> str:
    return str(wait_for(lambda: requests(engine), "a logged request")[-1]["outcome"])


@pytest.mark.parametrize("text", ["say 9999 words at 20 tokens/s", "hang", "hang at once"])
def test_hanging_up_ends_the_answer_and_frees_the_slot(start: Starter, text: str) -> None:
    engine = start()
    with httpx.Client(base_url=engine.url, headers=engine.http.headers, trust_env=False) as client:
        sender = threading.Thread(target=_ask_and_forget, args=(client, text))
        sender.start()
        wait_for(lambda: busy(engine)[0], "the slot to work")
    sender.join(10)
    wait_for(lambda: not busy(engine)[0], "the slot to be free")
    assert outcome(engine) == "cancelled"


def _ask_and_forget(client: httpx.Client, text: str) -> None:
    try:
        client.post(CHAT, json=body(text), timeout=0.5)
    except httpx.TransportError:
        return


def test_a_request_for_a_busy_slot_waits_for_it(start: Starter) -> None:
    engine = start()
    with opened(engine, "hang") as first:
        lines = first.iter_lines()  # held, because dropping it would close the stream
        next(lines)
        waiting = threading.Thread(target=engine.http.post, args=(CHAT,), kwargs={"json": body("say 1 word")})
        waiting.start()
        wait_for(lambda: "requests_deferred 1" in engine.http.get("/metrics").text, "a deferred request")
        with opened(engine, "say 2 words", id_slot=1) as other:
            assert "[DONE]" in other.read().decode()
    waiting.join(10)
    wait_for(lambda: len(requests(engine)) == 3, "all three to be logged")
    assert [(line["slot"], line["outcome"]) for line in requests(engine)] == [
        (1, "done"),
        (0, "cancelled"),
        (0, "done"),
    ]


def test_a_hundred_streams_at_once_are_served(start: Starter) -> None:
    engine = start(decode_tokens_per_s=2000)
    answers: list[int] = []

    def ask(number: int) -> None:
        with httpx.Client(base_url=engine.url, headers=engine.http.headers, trust_env=False) as client:
            answer = client.post(CHAT, json=body("say 5 words", id_slot=number % 2), timeout=60)
            answers.append(answer.text.count('"content": '))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [6] * 100  # the opening chunk's null and five words


def test_dying_takes_the_process_with_it(start: Starter) -> None:
    engine = start()
    with pytest.raises(httpx.TransportError), opened(engine, "die after 2 tokens") as stream:
        stream.read()
    assert engine.child.wait() == 1
    assert outcome(engine) == "died"


def test_dropping_ends_one_connection_only(start: Starter) -> None:
    engine = start()
    with pytest.raises(httpx.RemoteProtocolError), opened(engine, "drop after 2 tokens") as stream:
        stream.read()
    assert engine.healthy()


def test_a_signal_ends_every_connection_and_not_the_engine(start: Starter) -> None:
    engine = start()
    with opened(engine, "say 9999 words at 20 tokens/s") as answer:
        engine.child.send(signal.SIGUSR1)
        with pytest.raises(httpx.TransportError):
            answer.read()
    wait_for(lambda: not busy(engine)[0], "the slot to be free")
    assert engine.healthy()


def test_a_signal_hurries_the_answers_of_this_moment_and_no_later_one(start: Starter) -> None:
    engine = start(decode_tokens_per_s=1)
    with opened(engine, "say 2000 words", id_slot=0) as hurried:
        lines = hurried.iter_lines()
        assert next(lines)  # it has begun
        engine.child.send(signal.SIGUSR2)
        assert "".join(lines).count('"content": "') == 2000
    with opened(engine, "say 2000 words", id_slot=1) as later:
        lines = later.iter_lines()
        assert next(lines)
        assert busy(engine)[1]


def test_failing_in_mid_stream_is_an_error_event(start: Starter) -> None:
    with opened(start(), "fail after 2 tokens") as stream:
        text = stream.read().decode()
    assert (text.count('"content": "'), '"type": "server_error"' in text) == (2, True)


def test_failing_at_once_is_a_status(start: Starter) -> None:
    with opened(start(), "fail 500") as stream:
        assert stream.status_code == 500


def test_the_second_turn_finds_the_first_in_the_cache(start: Starter) -> None:
    engine = start()
    first = engine.http.post(CHAT, json=body("say 50 words", stream=False)).json()
    history = [*body("say 50 words")["messages"], first["choices"][0]["message"], {"role": "user", "content": "more"}]
    second = engine.http.post(CHAT, json={"messages": history, "id_slot": 0}).json()
    assert second["timings"]["cache_n"] >= first["usage"]["total_tokens"]


def test_the_first_starts_may_die_while_loading(start: Starter, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="failed to load model"):
        start(die_while_loading=1)
    assert start(die_while_loading=1).healthy()
    assert [line["event"] for line in json_lines(tmp_path / "engine.jsonl")] == ["start", "start"]


def test_while_loading_every_route_says_so(tmp_path: Path) -> None:
    engine = EngineProcess(tmp_path, empty_model(tmp_path), kind="standin", standin={"load_s": 3600})
    with engine.child, engine.http:
        answer = wait_for(lambda: _answer(engine), "any answer")
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "unavailable_error"


def _answer(engine: EngineProcess) -> httpx.Response | None:
    try:
        return engine.http.get("/health")
    except httpx.TransportError:
        return None
