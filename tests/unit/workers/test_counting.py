"""Counting threads: one request is one reply or none, and nothing that comes ends them."""

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
import structlog

from infra.errors import BrokerDown, EngineLost, EngineRefused, EngineTimeout, PromptTooLong
from scheduler.answering import CountRequest, CountRequests
from scheduler.contract import CountReply, GenerationRequest
from scheduler.packing import pack
from workers import counting
from workers.serving import Serving

pytestmark = pytest.mark.unit

SECRET = "xylophone7731"
REQUEST = GenerationRequest(model="m", messages=(), max_tokens=1, system=SECRET)
BODY = pack(REQUEST).body
ASKED = CountRequest("me", BODY)


class Line:
    """Hands out what it was made with, then tells the thread to stop. An exception among it is raised."""

    def __init__(self, stopping: threading.Event, *come: CountRequest | Exception | None) -> None:
        self.left = list(come)
        self.replies: list[tuple[str, CountReply]] = []
        self._stopping = stopping

    def take(self) -> CountRequest | None:
        if not self.left:
            self._stopping.set()
            return None
        come = self.left.pop(0)
        if isinstance(come, Exception):
            raise come
        return come

    def reply(self, request: CountRequest, reply: CountReply) -> None:
        self.replies.append((request.reply_to, reply))


class Engine:
    """Counts 7 for every prompt, unless told to raise; usable after it was asked `away` times."""

    def __init__(self, *raised: Exception, away: int = 0) -> None:
        self.raised = list(raised)
        self.away = away

    def usable_slots(self) -> int:
        self.away -= 1
        return 1 if self.away < 0 else 0

    def count(self, request: GenerationRequest) -> int:
        assert request == REQUEST
        if self.raised:
            raise self.raised.pop(0)
        return 7


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Line]:
    monkeypatch.setattr(counting, "RETRY_S", 0.001)

    def run(engine: Engine, *come: CountRequest | Exception | None) -> Line:
        stopping = threading.Event()
        line = Line(stopping, *come)
        counting.count_forever(cast(CountRequests, line), cast(Serving, cast(Any, engine)), stopping)
        return line

    return run


COUNTED = ("me", CountReply(tokens=7))


def test_each_request_gets_its_count(count: Callable[..., Line]) -> None:
    assert count(Engine(), ASKED, None, ASKED).replies == [COUNTED, COUNTED]


def test_nothing_is_taken_while_the_engine_is_away(count: Callable[..., Line]) -> None:
    line = count(Engine(away=3), ASKED)
    assert line.replies == [COUNTED]


def test_a_refused_prompt_is_told_to_its_asker(count: Callable[..., Line]) -> None:
    replies = count(Engine(EngineRefused("the template says no", status=400)), ASKED, ASKED).replies
    assert replies == [("me", CountReply(error="the template says no")), COUNTED]


@pytest.mark.parametrize(
    "raised",
    [
        *(EngineLost("gone"), EngineTimeout("slow"), PromptTooLong(2, 1)),
        *(TypeError(f"unhashable {SECRET}"), KeyError(SECRET), RuntimeError(SECRET), RecursionError(SECRET)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_request_that_cannot_be_counted_costs_its_own_count_only(
    count: Callable[..., Line], raised: Exception
) -> None:
    with structlog.testing.capture_logs() as logged:
        assert count(Engine(raised), ASKED, ASKED).replies == [COUNTED]
    assert [(line["event"], line["error"]) for line in logged] == [("not_counted", type(raised).__name__)]
    assert SECRET not in str(logged)


@pytest.mark.parametrize("body", [b"", b"not packed", BODY[:-9]])
def test_a_body_that_cannot_be_read_costs_nothing_else(count: Callable[..., Line], body: bytes) -> None:
    assert count(Engine(), CountRequest("me", body), ASKED).replies == [COUNTED]


@pytest.mark.parametrize("raised", [BrokerDown("away"), ValueError(SECRET)], ids=lambda error: type(error).__name__)
def test_a_line_that_fails_is_asked_again(count: Callable[..., Line], raised: Exception) -> None:
    with structlog.testing.capture_logs() as logged:
        assert count(Engine(), raised, raised, ASKED).replies == [COUNTED]
    assert [line["event"] for line in logged] == ["counting_waits"] * 2
    assert SECRET not in str(logged)
