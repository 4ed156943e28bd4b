"""Errors as the client sees them."""

import pytest

from api.errors import error_of, reply_for
from infra import errors
from infra.errors import CorralError
from scheduler.contract import Failed

pytestmark = pytest.mark.unit

# status, type, x-should-retry, retry-after
CASES: list[tuple[CorralError, int, str, str, str | None]] = [
    (errors.BadRequest("is required", field="messages"), 400, "invalid_request_error", "false", None),
    (errors.PromptTooLong(9, 8), 400, "invalid_request_error", "false", None),
    (errors.NoRoomForOutput(7, 2, 8), 400, "invalid_request_error", "false", None),
    (errors.BodyTooLarge("too large"), 413, "request_too_large", "false", None),
    (errors.NotAuthenticated("no key"), 401, "authentication_error", "false", None),
    (errors.NotAllowed("no"), 403, "permission_error", "false", None),
    (errors.NotFound("nothing here"), 404, "not_found_error", "false", None),
    (errors.QueueFull("full", retry_after_s=12), 529, "overloaded_error", "true", "12"),
    (errors.WaitedTooLong("late", retry_after_s=3), 503, "api_error", "true", "3"),
    (errors.NoWorker("loading", retry_after_s=600), 503, "api_error", "true", "60"),
    (errors.BrokerDown("down"), 503, "api_error", "true", "5"),
    (errors.ShuttingDown("stopping", retry_after_s=0), 503, "api_error", "true", "1"),
    (errors.EngineError("failed"), 502, "api_error", "true", None),
    (errors.EngineLost("gone"), 502, "api_error", "true", None),
    (errors.EngineGarbled("!!!!"), 502, "api_error", "true", None),
    (errors.CallMayBeLost("ask again", retry_after_s=1), 502, "api_error", "true", None),
    (errors.EngineTimeout("slow"), 504, "api_error", "true", None),
    (errors.EngineRefused("template", status=400), 500, "api_error", "false", None),
    (errors.WorkerLost("gone"), 502, "api_error", "true", None),
    (errors.DeadlinePassed("late"), 504, "api_error", "false", None),
    (errors.TooSlow("late"), 504, "api_error", "true", None),
    (CorralError("something broke"), 500, "api_error", "true", None),
]


@pytest.mark.parametrize(("error", "status", "kind", "retry", "wait"), CASES, ids=[case[0].code for case in CASES])
def test_each_error_has_its_status_type_and_advice(
    error: CorralError, status: int, kind: str, retry: str, wait: str | None
) -> None:
    reply = reply_for(error, "req_1")
    assert reply.status == status
    assert reply.headers == {"x-should-retry": retry} | ({"retry-after": wait} if wait else {})
    assert reply.body == {
        "type": "error",
        "error": {"type": kind, "message": error.message},
        "request_id": "req_1",
    }


@pytest.mark.parametrize("error", [case[0] for case in CASES], ids=[case[0].code for case in CASES])
def test_an_error_that_came_back_from_a_worker_is_answered_the_same(error: CorralError) -> None:
    failed = Failed(error.code, error.message, retry_after_s=error.retry_after_s)
    assert reply_for(error_of(failed), "req_1") == reply_for(error, "req_1")


def test_a_code_of_a_newer_worker_is_an_internal_error_in_the_workers_words() -> None:
    reply = reply_for(error_of(Failed("quantum_decoherence", "the cat is dead")), "req_1")
    assert (reply.status, reply.body["error"]) == (500, {"type": "api_error", "message": "the cat is dead"})


def test_overflow_is_said_in_the_words_that_make_the_client_compact() -> None:
    assert (
        reply_for(errors.PromptTooLong(9, 8), "r").body["error"]["message"]
        == "prompt is too long: 9 tokens > 8 maximum"
    )
