"""Speaks HTTP to one llama-server.

Owns: its address and key, the counting of a prompt, and the way to a new answer (`generation`).
Never: retries, and never keeps a connection: the engine closes kept ones after about 100 requests, in the middle of the
next one.
"""

import http.client
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from infra.errors import EngineLost, EngineTimeout
from workers.llama.generation import Deadlines, Event, Generation, lost, translated
from workers.llama.parse import AnswerRules, End, Prompt

__all__ = ["AnswerRules", "Deadlines", "End", "EngineClient", "Event", "Generation", "Prompt"]

COUNT_PATH = "/v1/chat/completions/input_tokens"
CONNECT_TIMEOUT_S = 5.0
COUNT_TIMEOUT_S = 10.0


class EngineClient:
    """One llama-server. Safe to use from several threads."""

    def __init__(self, base_url: str, api_key: str, deadlines: Deadlines) -> None:
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or http.client.HTTP_PORT
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._deadlines = deadlines
        self._control = httpx.Client(
            base_url=base_url,
            headers=self._headers,
            timeout=httpx.Timeout(COUNT_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_keepalive_connections=0),
            # A proxy of the environment must not stand between us and the engine.
            trust_env=False,
        )

    def generate(self, body: bytes, rules: AnswerRules) -> Generation:
        """An answer that starts when it is iterated; does not block. `body` and `rules` are `render`'s."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        return Generation(connection, self._headers, body, rules, self._deadlines)

    def count(self, body: dict[str, Any]) -> int:
        """Tokens of the prompt that this chat body renders to, exact, even when it exceeds the window.

        Raises EngineLost (also while the model loads, and once this client was closed), EngineTimeout or EngineRefused.
        """
        try:
            response = self._control.post(COUNT_PATH, content=orjson.dumps(body))
        except httpx.TimeoutException:
            raise EngineTimeout("the engine did not count the prompt in time") from None
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: another thread closed this client
            raise lost(error) from None
        if response.status_code != http.client.OK:
            raise translated(response.status_code, response.content)
        return _counted(response.content)

    def close(self) -> None:
        """From any thread, at any time; a count that runs or comes later raises EngineLost."""
        self._control.close()


def _counted(answer: bytes) -> int:
    try:
        return int(orjson.loads(answer)["input_tokens"])
    except (ValueError, KeyError, TypeError):
        raise EngineLost("the engine's answer holds no count") from None
