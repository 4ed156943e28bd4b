"""Pretends to be the API: shows the pretended workers, serves nothing.

Owns: /v1/status, /v1/models and /ready out of the files that the pretended workers write.
Never: a broker, a request.
"""

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

FOLDER = Path(os.environ["PRETENDED_FOLDER"])


class Server(ThreadingHTTPServer):
    """Several of them may stand behind one port."""

    allow_reuse_port = True


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        workers = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
        models = [{"id": worker["model"]} for worker in workers]
        answers = {"/v1/status": {"workers": workers, "waiting": 0}, "/v1/models": {"data": models}}
        raw = json.dumps(answers.get(self.path, {})).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_arguments: object) -> None:
        """Nothing."""


def drain(_number: int, _frame: FrameType | None) -> None:
    """An answer that still runs: the API takes its time to end."""
    time.sleep(float(os.environ.get("PRETENDED_DRAIN_S", "0")))
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, drain)
    Server((os.environ["CORRAL_HOST"], int(os.environ["CORRAL_PORT"])), Handler).serve_forever()
