"""A gateway that tells no shapes, in words that say what to do."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from infra.bench import record
from infra.errors import ConfigError

pytestmark = pytest.mark.unit


@contextmanager
def answering(status: int) -> Iterator[str]:
    """The address of a gateway that answers each request with this status."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is said."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "words"), [(401, "give --key"), (503, "end another one"), (404, "is it a Corral of this version")]
)
def test_why_nothing_is_recorded_is_said_and_no_file_is_left(status: int, words: str, tmp_path: Path) -> None:
    with answering(status) as url, pytest.raises(ConfigError, match=words):
        record.main(out=tmp_path / "t", url=url)
    assert list(tmp_path.iterdir()) == []
