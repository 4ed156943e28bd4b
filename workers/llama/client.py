"""Speaks HTTP to one llama-server.

Owns: its address and key, the control routes, and the way to a new answer (`generation`).
Never: retries, and never keeps a connection: the engine closes kept ones after about 100 requests, in the middle of the
next one.
"""

import http.client
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from infra.errors import EngineTimeout
from workers.llama.generation import Deadlines, Generation, lost, translated
from workers.llama.parse import AnswerRules

COUNT_PATH = "/v1/chat/completions/input_tokens"
CONNECT_TIMEOUT_S = 5.0
CONTROL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class EngineProperties:
    """What the engine says of itself: window of one slot in tokens, number of slots, whether it sees images."""

    context_tokens: int
    slots: int
    vision: bool


class EngineClient:
    """One llama-server. Safe to use from several threads."""

    def __init__(self, base_url: str, api_key: str, deadlines: Deadlines) -> None:
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._deadlines = deadlines
        self._control = httpx.Client(
            base_url=base_url,
            headers=self._headers,
            timeout=httpx.Timeout(CONTROL_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_keepalive_connections=0),
            trust_env=False,
        )

    def generate(self, body: bytes, rules: AnswerRules) -> Generation:
        """An answer that starts when it is iterated; does not block."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        headers = {"Content-Type": "application/json", **self._headers}
        return Generation(connection, headers, body, rules, self._deadlines)

    def count(self, body: dict[str, Any]) -> int:
        """Tokens of the prompt that this chat body renders to, exact, even when it exceeds the window.

        Raises EngineLost, EngineTimeout or EngineRefused.
        """
        return int(self._ask("POST", COUNT_PATH, orjson.dumps(body))["input_tokens"])

    def properties(self) -> EngineProperties:
        """Raises EngineLost (also while the model loads), EngineTimeout or EngineRefused."""
        found = self._ask("GET", "/props", b"")
        return EngineProperties(
            context_tokens=found["default_generation_settings"]["n_ctx"],
            slots=found["total_slots"],
            vision=bool(found.get("modalities", {}).get("vision")),
        )

    def close(self) -> None:
        self._control.close()

    def _ask(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        try:
            response = self._control.request(method, path, content=body, headers={"Content-Type": "application/json"})
        except httpx.TimeoutException:
            raise EngineTimeout(f"the engine did not answer {path} in time") from None
        except httpx.HTTPError as error:
            raise lost(error) from None
        if response.status_code != http.client.OK:
            raise translated(response.status_code, response.content)
        found: dict[str, Any] = orjson.loads(response.content)
        return found
