"""A client that comes and goes: it hangs up in mid-answer and asks how long prompts are.

Owns: what it asks.
Never: judges; what answers are worth is seen by the agents beside it.
"""

import itertools
import threading
from contextlib import suppress

import httpx

from tests.chaos.house import House

PAUSE_S = 1.0


class Visitor(threading.Thread):
    """Comes each second until `stopping`."""

    def __init__(self, house: House, stopping: threading.Event) -> None:
        super().__init__(name="visitor")
        self._stopping = stopping
        self._http = httpx.Client(base_url=house.url, trust_env=False, timeout=45)

    def run(self) -> None:
        with self._http:
            for number in itertools.count(1):
                with suppress(httpx.HTTPError):
                    self._hang_up(f"visit {number}: say 200 words at 20 tokens/s")
                    self._http.post("/v1/messages/count_tokens", json=_body(f"visit {number}"))
                if self._stopping.wait(PAUSE_S):
                    return

    def _hang_up(self, text: str) -> None:
        """The answer begins, and nobody reads its end."""
        body = {**_body(text), "max_tokens": 4000, "stream": True}
        with self._http.stream("POST", "/v1/messages", json=body) as answer:
            any(line.startswith("event: content_block_delta") for line in answer.iter_lines())


def _body(text: str) -> dict[str, object]:
    return {"model": "any", "messages": [{"role": "user", "content": text}]}
