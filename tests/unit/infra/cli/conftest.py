"""An API made of fixed answers, for the commands that speak HTTP."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest


class FixedApi:
    """Answers by path with a status and a body; remembers the keys it was sent."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.keys: list[str | None] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.keys.append(self.headers["x-api-key"])
                status, body = api.answers.get(self.path.partition("?")[0], (404, {}))
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def do_POST(self) -> None:
                self.do_GET()

            def do_DELETE(self) -> None:
                self.do_GET()

            def log_message(self, *_arguments: object) -> None:
                """Nothing: the output of a test is the command's."""

        return Handler


@pytest.fixture
def fixed_api() -> Iterator[FixedApi]:
    """A ready cluster of one worker; tests change its answers."""
    api = FixedApi()
    worker = {
        "name": "w1",
        "state": "ready",
        "model": "anthropic-m",
        "context_tokens": 65536,
        "slots": [
            {"slot": 0, "conversation": "3fa9c1d2e4f5aa", "agent": "reviewer", "busy": True, "tokens": 31234},
            {"slot": 1},
        ],
        "queued": [0, 2, 0, 0, 0, 7, 0, 0, 0, 0],
        "line": [
            {"agent": "builder", "level": 5, "place": 1, "waited_s": 3.2, "expected_s": 12.4},
            {"agent": "tester", "level": 5, "place": 2, "waited_s": 0.1, "expected_s": None},
        ],
        "engine_bytes": 3 * 2**30,
        "store": {"off": "", "used_bytes": 5 * 2**30, "saves": 41, "restores": 17, "failures": 0, "bytes_per_token": 9},
        "something_new": True,
    }
    misses = {"evicted": {"count": 3, "tokens": 84210, "ms": 61400}, "first_turn": {"count": 8, "tokens": 0, "ms": 0}}
    wait: dict[str, object] = {
        "waits": 120,
        "median_error_s": 1.25,
        "p90_error_s": 8.0,
        "ratio": 1.04,
        "promises_kept": 7,
        "in_vain": 3,
        "moved": 4,
    }
    wait["refused"] = {"wait": 11, "full": 2}
    status = {"workers": [worker], "waiting": 9, "misses": misses, "wait": wait, "coalesced": 5}
    api.answers["/v1/status"] = (200, status)
    api.answers["/v1/models"] = (200, {"data": [{"id": "anthropic-m"}]})
    api.answers["/ready"] = (200, {})
    yield api
    api.stop()
