"""Counting a prompt, and the engine's errors as ours."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, cast

import orjson
import pytest

from infra.errors import EngineLost, EngineRefused
from workers.llama.client import Deadlines, EngineClient

pytestmark = pytest.mark.unit


class Handler(BaseHTTPRequestHandler):
    """Says how many bytes it was sent, or refuses; sends a body that is no JSON object back as its answer."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if not body.startswith(b"{"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(orjson.loads(body).encode())
            return
        refused = self.headers["authorization"] != "Bearer secret"
        answer: dict[str, object] = {"input_tokens": len(body)}
        if refused:
            answer = {"error": {"code": 401, "message": "Invalid API Key"}}
        elif self.path != "/v1/chat/completions/input_tokens":
            answer = {"error": {"code": 404, "message": "File Not Found"}}
        self.send_response(200 if "input_tokens" in answer else 401)
        self.end_headers()
        self.wfile.write(orjson.dumps(answer))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silent."""


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def client(url: str, key: str = "secret") -> EngineClient:
    return EngineClient(url, key, Deadlines(1, 1, 1))


def test_a_prompt_is_counted(url: str) -> None:
    counter = client(url)

    assert counter.count({"messages": []}) == len(orjson.dumps({"messages": []}))
    counter.close()


def test_a_refused_count_keeps_the_engines_words(url: str) -> None:
    counter = client(url, key="wrong")
    with pytest.raises(EngineRefused, match="Invalid API Key") as caught:
        counter.count({})

    assert caught.value.status == 401
    counter.close()


@pytest.mark.parametrize(
    "answer", ["", "{", "null", "[]", "7", "{}", '{"input_tokens": null}', '{"input_tokens": "x"}']
)
def test_an_answer_that_is_no_count_is_an_error_of_the_engine(url: str, answer: str) -> None:
    counter = client(url)
    with pytest.raises(EngineLost, match="the engine's answer"):
        counter.count(cast(Any, answer))
    counter.close()


def test_a_client_that_was_closed_has_lost_its_engine(url: str) -> None:
    counter = client(url)
    counter.close()
    with pytest.raises(EngineLost):
        counter.count({})


def test_a_client_that_is_closed_while_it_counts_has_lost_its_engine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as engine:
        counter = client(f"http://127.0.0.1:{engine.getsockname()[1]}")
        with ThreadPoolExecutor(1) as threads:
            counting = threads.submit(counter.count, {})
            connection, _ = engine.accept()
            assert connection.recv(4)
            counter.close()
            connection.close()
            assert isinstance(counting.exception(10), EngineLost)


def test_without_an_engine_nothing_is_counted() -> None:
    counter = client("http://127.0.0.1:9")
    with pytest.raises(EngineLost):
        counter.count({})
    counter.close()
