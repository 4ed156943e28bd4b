"""Asks a running engine how it is.

Owns: its health and its properties, as its own HTTP routes give them.
Never: sends it work, decides what follows from an answer.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import httpx

from infra.network import LOOPBACK
from workers.llama.joint import QUESTION, call_joint

TIMEOUT_S = 2.0


class Health(StrEnum):
    OK = "ok"
    LOADING = "loading"
    SILENT = "silent"


class NotOursError(Exception):
    """Something answers on the port, but it does not know our key."""


@dataclass(frozen=True, slots=True)
class EngineProps:
    """What the engine says about itself; nothing is taken from settings. `context_tokens` is the window of one slot.

    `call_joint` is what its template writes between the text and the calls of an answer.
    """

    slots: int
    context_tokens: int
    vision: bool
    model_path: str
    build: str
    chat_template: str
    call_joint: str = ""


class Probe:
    """A connection for control; no answer is waited for longer than 2 s."""

    def __init__(self, port: int, api_key: str) -> None:
        self._client = httpx.Client(
            base_url=f"http://{LOOPBACK}:{port}",
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=TIMEOUT_S,
            # A proxy of the environment must not stand between us and our own child.
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def health(self) -> Health:
        """SILENT also before the engine listens."""
        try:
            status = self._client.get("/health").status_code
        except httpx.HTTPError:
            return Health.SILENT
        return Health.OK if status == httpx.codes.OK else Health.LOADING

    def props(self) -> EngineProps | None:
        """None when the engine is not ready to tell. Raises NotOursError."""
        try:
            answer = self._client.get("/props")
        except httpx.HTTPError:
            return None
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.NOT_FOUND):
            raise NotOursError
        if answer.status_code != httpx.codes.OK:
            return None
        return replace(read_props(answer.json()), call_joint=self._call_joint())

    def working_slots(self) -> list[dict[str, Any]] | None:
        """Slots with work, as the engine's loop describes them; it does so between two steps. None: no answer."""
        try:
            answer = self._client.get("/slots")
            return [slot for slot in answer.json() if slot["is_processing"]] if answer.is_success else None
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None

    def _call_joint(self) -> str:
        """Empty also for a template that has no calls: some refuse them."""
        try:
            answer = self._client.post("/apply-template", json=QUESTION)
        except httpx.HTTPError:
            return ""
        return call_joint(str(answer.json()["prompt"])) if answer.status_code == httpx.codes.OK else ""


def read_props(answer: dict[str, Any]) -> EngineProps:
    """From the answer of GET /props."""
    return EngineProps(
        slots=int(answer["total_slots"]),
        context_tokens=int(answer["default_generation_settings"]["n_ctx"]),
        vision=bool(answer.get("modalities", {}).get("vision")),
        model_path=str(answer["model_path"]),
        build=str(answer.get("build_info", "")),
        chat_template=str(answer.get("chat_template", "")),
    )
