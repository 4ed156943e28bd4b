"""Speaks HTTP to one llama-server.

Owns: its address and key, counting a prompt, saving and restoring a slot, and the way to a new answer (`generation`).
Never: retries, and never keeps a connection: the engine closes kept ones after about 100 requests, in the middle of the
next one.
"""

import http.client
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from infra.errors import EngineLost, EngineTimeout
from scheduler.contract import Limits
from workers.llama.exchange import Exchange
from workers.llama.generation import CONNECT_TIMEOUT_S, Deadlines, Event, Generation, lost, translated
from workers.llama.parse import AnswerRules, End, Prompt
from workers.llama.pulse import Pulse

__all__ = ["AnswerRules", "Deadlines", "End", "EngineClient", "Event", "Generation", "Moved", "Prefilled", "Prompt"]

TEMPLATE_PATH = "/apply-template"
COUNT_PATH = "/v1/chat/completions/input_tokens"
COUNT_TIMEOUT_S = 10.0
MOVE_TIMEOUT_S = 120.0  # 40 GB at the speed of a plain disk
PROMPT_TIMEOUT_S = 60.0
UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class Moved:
    """A slot's cache that went to a file or came from one."""

    tokens: int
    size_bytes: int
    took_ms: float


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What a bare prompt cost: its length, how much of it the slot held already, and the prefill of the rest."""

    prompt_tokens: int
    cached_tokens: int
    prefill_ms: float


class EngineClient:
    """One llama-server. Safe to use from several threads."""

    def __init__(
        self, base_url: str, api_key: str, deadlines: Deadlines, pulse: Pulse | None = None, rest_s: float = 0.0
    ) -> None:
        """`pulse` is told of the work that this engine is given. A running answer is read once in `rest_s` at most."""
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or http.client.HTTP_PORT
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._deadlines = deadlines
        self._pulse = pulse or Pulse()
        self._rest_s = rest_s
        self._control = httpx.Client(
            base_url=base_url,
            headers=self._headers,
            timeout=httpx.Timeout(COUNT_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_keepalive_connections=0),
            # A proxy of the environment must not stand between us and the engine.
            trust_env=False,
        )

    def generate(
        self, body: bytes, rules: AnswerRules, limits: Limits = UNLIMITED, waited_s: float = 0.0, traceparent: str = ""
    ) -> Generation:
        """An answer that starts when it is iterated; does not block. `body` and `rules` are `render`'s. Of the client's
        `limits` so many seconds are over. A `traceparent` goes along as W3C Trace Context has it."""
        exchange = Exchange(self._host, self._port)
        headers = {**self._headers, "traceparent": traceparent} if traceparent else self._headers
        deadlines = self._deadlines.for_client(limits, waited_s)
        return Generation(exchange, headers, body, rules, deadlines, self._pulse, self._rest_s)

    def count(self, body: dict[str, Any]) -> int:
        """Tokens of the prompt that this chat body renders to, exact, even when it exceeds the window.

        Raises EngineLost (also while the model loads, and once this client was closed), EngineTimeout or EngineRefused.
        """
        return _number(self._post(COUNT_PATH, body, COUNT_TIMEOUT_S), "input_tokens")

    def prompt_of(self, body: dict[str, Any]) -> str:
        """The prompt that this chat body renders to. Raises as `count`."""
        return str(self._post(TEMPLATE_PATH, body, COUNT_TIMEOUT_S).get("prompt", ""))

    def save(self, slot: int, file: str) -> Moved:
        """Write a slot's cache to `file` in the engine's folder; the engine's answers stand still meanwhile.

        Raises EngineLost, EngineTimeout or EngineRefused.
        """
        answer = self._work(f"/slots/{slot}?action=save", {"filename": file}, MOVE_TIMEOUT_S)
        took_ms = float(answer.get("timings", {}).get("save_ms", 0.0))
        return Moved(_number(answer, "n_saved"), _number(answer, "n_written"), took_ms)

    def restore(self, slot: int, file: str) -> Moved:
        """Fill a slot from `file`; after a failure the slot is empty. Raises as `save`."""
        answer = self._work(f"/slots/{slot}?action=restore", {"filename": file}, MOVE_TIMEOUT_S)
        took_ms = float(answer.get("timings", {}).get("restore_ms", 0.0))
        return Moved(_number(answer, "n_restored"), _number(answer, "n_read"), took_ms)

    def prefill(self, prompt: str, slot: int) -> Prefilled:
        """A bare prompt without a template, and one token. Raises as `save`."""
        body = {"prompt": prompt, "n_predict": 1, "id_slot": slot, "cache_prompt": True}
        timings = self._work("/completion", body, PROMPT_TIMEOUT_S).get("timings", {})
        new, cached = _number(timings, "prompt_n"), _number(timings, "cache_n")
        return Prefilled(new + cached, cached, float(timings.get("prompt_ms", 0.0)))

    def close(self) -> None:
        """From any thread, at any time; what runs or comes later, but for a generation, raises EngineLost."""
        self._control.close()

    def _work(self, path: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """As `_post`, for what the engine's loop does itself."""
        self._pulse.begin()
        heard = False
        try:
            answer = self._post(path, body, timeout_s)
            self._pulse.beat()
            heard = True
        finally:
            self._pulse.end(heard=heard)
        return answer

    def _post(self, path: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        limit = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            response = self._control.post(path, content=orjson.dumps(body), timeout=limit)
        except httpx.TimeoutException:
            raise EngineTimeout(f"the engine did not answer {path} within {timeout_s:g} s") from None
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: another thread closed this client
            raise lost() from error
        if response.status_code != http.client.OK:
            raise translated(response.status_code, response.content)
        try:
            answer = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise EngineLost("the engine's answer is no JSON object")
        return answer


def _number(answer: dict[str, Any], name: str) -> int:
    try:
        return int(answer[name])
    except (ValueError, KeyError, TypeError):
        raise EngineLost(f"the engine's answer holds no {name}") from None
