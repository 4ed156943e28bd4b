"""A gateway that cannot answer for a moment is asked again, and no more often than three times."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from infra import retrying
from infra.cli.gateway import Gateway
from infra.errors import Refused

pytestmark = pytest.mark.unit


@contextmanager
def answering(*statuses: int) -> Iterator[tuple[str, list[int]]]:
    """A server with these answers, one after the other; yields its address and what is left of them."""
    left = [*statuses]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(left.pop(0))
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Silent."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", left
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_PAUSE_S", 0.001)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_gateway_that_cannot_answer_now_is_asked_again(status: int) -> None:
    with answering(status, status, 200) as (url, left), Gateway(url, "key") as gateway:
        assert gateway.status_json() == {}
        assert left == []


def test_after_the_third_try_its_last_answer_stands() -> None:
    with answering(503, 503, 503, 200) as (url, left), Gateway(url, "key") as gateway:
        with pytest.raises(Refused, match="503"):
            gateway.status_json()
        assert left == [200]


@pytest.mark.parametrize("status", [400, 404, 500, 529])
def test_an_answer_that_would_be_the_same_again_is_not_asked_for_again(status: int) -> None:
    with answering(status, 200) as (url, left), Gateway(url, "key") as gateway:
        with pytest.raises(Refused, match=str(status)):
            gateway.status_json()
        assert left == [200]
