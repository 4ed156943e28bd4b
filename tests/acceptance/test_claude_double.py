"""The helper that runs the real Claude Code: isolated, with the headers asked for, and its output read."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.doubles.claude import ClaudeCode

pytestmark = pytest.mark.acceptance

REPLY = "Recorded, thank you."


class Recorder(ThreadingHTTPServer):
    """A gateway that answers every message with one sentence and keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Recorder

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in events(body):
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Say nothing."""


def events(body: dict[str, Any]) -> list[dict[str, Any]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": REPLY}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_real_client_asks_with_our_headers_and_its_answer_is_read(claude: ClaudeCode, recorder: Recorder) -> None:
    outcome = claude.run("hello", url=recorder.url, agent="reviewer", priority=2, key="the-key")
    assert outcome.text == REPLY
    assert (outcome.status, outcome.turns) == (0, 1)
    headers, body = recorder.asked[-1]
    assert (headers["x-agent-id"], headers["x-priority"]) == ("reviewer", "2")
    assert headers["authorization"] == "Bearer the-key"
    assert headers["x-claude-code-session-id"] == outcome.session
    assert "Bash" in [tool["name"] for tool in body["tools"]]


def test_stream_json_gives_every_event(claude: ClaudeCode, recorder: Recorder) -> None:
    outcome = claude.run("hello", url=recorder.url, output="stream-json")
    assert {"system", "assistant", "result"} <= {event["type"] for event in outcome.events}
    assert outcome.text == REPLY
