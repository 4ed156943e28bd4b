"""A client that comes and goes: it hangs up in mid-answer and asks how long prompts are.

Owns: what it asks, and that it gets it.
Never: a session, a fault.
"""

import itertools
import threading

import httpx

from tests.chaos.house import House
from tests.chaos.judge import Findings

PAUSE_S = 1.0


class Visitor(threading.Thread):
    """Comes each second until `stopping`. What is not as it must be goes into `findings`."""

    def __init__(self, house: House, stopping: threading.Event, findings: Findings) -> None:
        super().__init__(name="visitor")
        self._stopping = stopping
        self._findings = findings
        self._http = httpx.Client(base_url=house.url, trust_env=False, timeout=45)

    def run(self) -> None:
        with self._http:
            for number in itertools.count(1):
                try:
                    self._hang_up(f"visit {number}: say 200 words at 20 tokens/s")
                    self._count(f"visit {number}")
                except httpx.HTTPError as error:
                    self._findings.wrong.append(f"visit {number}: {error}")
                if self._stopping.wait(PAUSE_S):
                    return

    def _hang_up(self, text: str) -> None:
        """The answer begins, and nobody reads its end."""
        body = {**_body(text), "max_tokens": 4000, "stream": True}
        with self._http.stream("POST", "/v1/messages", json=body) as answer:
            answer.raise_for_status()
            if not any(line.startswith("event: content_block_delta") for line in answer.iter_lines()):
                self._findings.wrong.append(f"{text}: no answer")

    def _count(self, text: str) -> None:
        answer = self._http.post("/v1/messages/count_tokens", json=_body(text))
        answer.raise_for_status()
        if not answer.json()["input_tokens"]:
            self._findings.wrong.append(f"{text}: counted as nothing")


def _body(text: str) -> dict[str, object]:
    return {"model": "any", "messages": [{"role": "user", "content": text}]}
