"""Records how a client begins its conversations, as a file for the setting `warm`.

Owns: a server on loopback that takes the client's first request with tools, writes its beginning to a file, and refuses
it and all others in words that the client shows.
Never: answers one, passes one on, or keeps a message; what the user typed is in none of the files.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from infra import warm_files
from infra.errors import ConfigError

MESSAGES = "/v1/messages"
TOLD = "recorded; this is no model: leave the client now"


class BaseRecorder:
    """Inside the block clients can be pointed at `url`. `recorded` says that the file has been written."""

    def __init__(self, file: Path) -> None:
        """Raises ConfigError when no setting could name the file, or it cannot be written."""
        if file.suffix != warm_files.RECORDED_SUFFIX:
            raise ConfigError(f"--record-base {file}: must end in {warm_files.RECORDED_SUFFIX}")
        if not os.access(file.absolute().parent, os.W_OK):
            raise ConfigError(f"--record-base {file}: its folder is not there, or cannot be written to")
        self.recorded = False
        self._file = file
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, raw: bytes) -> None:
        """Write the beginning of this request, if it is the first with tools; without any it may be a side call."""
        try:
            body = json.loads(raw)
        except ValueError:
            return
        if not self.recorded and isinstance(body, dict) and body.get("tools"):
            kept = {name: body[name] for name in warm_files.KEPT if name in body}
            self._file.write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            self.recorded = True


def _handler(recorder: BaseRecorder) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(200, {})

        def do_GET(self) -> None:
            self._answer(404, _error("not_found_error"))

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            if urlsplit(self.path).path == MESSAGES:
                recorder.take(raw)
            self._answer(400, _error("invalid_request_error"))

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            raw = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"content-type": "application/json", "x-should-retry": "false"}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(raw)

        def log_message(self, *_arguments: object) -> None:
            """Nothing: the terminal is the client's."""

    return Handler


def _error(kind: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": TOLD}}
