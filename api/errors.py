"""What each error is on the wire: one table.

Owns: code -> HTTP status, Anthropic error type, whether the client should ask again.
Never: the words, which errors bring with them; the decision that something is wrong.
"""

from dataclasses import dataclass
from typing import Any

from infra.errors import CorralError
from scheduler.contract import Failed

# Claude Code gives up at once on a longer wait (tried), and a wait of 0 would be a hammer.
RETRY_AFTER_S = range(1, 61)
DEFAULT_RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True)
class Row:
    """`retry`: the client should send the same again. `wait`: and is told how many seconds later."""

    status: int
    type: str
    retry: bool
    wait: bool = False


_INVALID = Row(400, "invalid_request_error", retry=False)
_UNAVAILABLE = Row(503, "api_error", retry=True, wait=True)
INTERNAL = Row(500, "api_error", retry=True)

TABLE: dict[str, Row] = {
    "bad_request": _INVALID,
    "prompt_too_long": _INVALID,
    "no_room_for_output": _INVALID,
    "body_too_large": Row(413, "request_too_large", retry=False),
    "not_authenticated": Row(401, "authentication_error", retry=False),
    "not_allowed": Row(403, "permission_error", retry=False),
    "not_found": Row(404, "not_found_error", retry=False),
    "queue_full": Row(529, "overloaded_error", retry=True, wait=True),
    "refused": _UNAVAILABLE,
    "waited_too_long": _UNAVAILABLE,
    "no_worker": _UNAVAILABLE,
    "broker_down": _UNAVAILABLE,
    "shutting_down": _UNAVAILABLE,
    # Another try meets a restarted engine or another worker.
    "engine_error": Row(502, "api_error", retry=True),
    "engine_lost": Row(502, "api_error", retry=True),
    "engine_garbled": Row(502, "api_error", retry=True),
    "call_may_be_lost": Row(502, "api_error", retry=True),
    "engine_timeout": Row(504, "api_error", retry=True),
    # The same answer would take as long again.
    "deadline_passed": Row(504, "api_error", retry=False),
    "too_slow": Row(504, "api_error", retry=True),
    "worker_lost": Row(502, "api_error", retry=True),
    # The engine will not take this prompt; the same prompt ten times more would only make the user wait.
    "engine_refused": Row(500, "api_error", retry=False),
    "internal": INTERNAL,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """An error as an HTTP answer. `body["error"]` is also what the `error` event of a stream carries."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


def reply_for(error: CorralError, request_id: str) -> Reply:
    """The answer for an error. A code that the table does not know (a newer worker's) is an internal error."""
    row = TABLE.get(error.code, INTERNAL)
    body = {
        "type": "error",
        "error": {"type": row.type, "message": error.message},
        "request_id": request_id,
    }
    headers = {"x-should-retry": "true" if row.retry else "false"}
    if row.wait:
        headers["retry-after"] = str(within_bounds(error.retry_after_s))
    return Reply(row.status, body, headers)


def error_of(failed: Failed) -> CorralError:
    """What ended a job at a worker, as an error that `reply_for` answers like one of our own."""
    error = CorralError(failed.message, retry_after_s=failed.retry_after_s)
    error.code = failed.code
    return error


def within_bounds(seconds: int | None) -> int:
    """The number of seconds that the header tells for `seconds`."""
    wanted = DEFAULT_RETRY_AFTER_S if seconds is None else seconds
    return max(RETRY_AFTER_S.start, min(wanted, RETRY_AFTER_S.stop - 1))
