"""The one tree of Corral's errors.

Owns: every error that crosses a module border, with what the edge must say (code, retry hint, field).
Never: an HTTP status or a word of a protocol; `api.errors` has that table, keyed by `code`.

    CorralError
    +-- BadRequest(field)            the caller sent something that cannot be served
    |   +-- PromptTooLong            prompt alone exceeds the window
    |   +-- NoRoomForOutput          prompt fits, nothing useful is left to write in
    |   +-- BodyTooLarge
    +-- NotAuthenticated, NotAllowed, NotFound
    +-- Refused(retry_after_s)       true now, may be different later
    |   +-- QueueFull                every worker's line is full or promised
    |   +-- WaitedTooLong            the waiting limit passed before a slot was free
    |   +-- NoWorker                 no worker can serve this now (none, loading, draining)
    |   +-- BrokerDown               Redis does not answer
    |   +-- ShuttingDown
    +-- EngineError                  the engine failed while serving
    |   +-- EngineLost               its process or connection went away
    |   +-- EngineRefused            it answered with an error
    |   +-- EngineTimeout            it was silent for too long
    |   +-- EngineGarbled            it says one token again and again
    |   +-- CallMayBeLost            an answer that goes on may lack a tool call
    +-- WorkerLost                   the worker died with the job running
    +-- DeadlinePassed               the whole answer takes longer than it may
    |   +-- TooSlow                  a token does not come in the time that the client allows
    +-- Fenced                       a newer attempt owns the job: stop, say nothing
    +-- Cancelled                    the client is gone
    +-- ConfigError(key)             a setting is unknown or wrong
    +-- StartError(part)             a part of the house cannot start
"""


class CorralError(Exception):
    """Base of all. `code` names the case across processes; `retry_after_s` is whole seconds or None."""

    code = "internal"

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class BadRequest(CorralError):
    """The request cannot be served as sent; the message starts with the field's path."""

    code = "bad_request"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class PromptTooLong(BadRequest):
    """The prompt exceeds the window. The words are the ones that make the client compact."""

    code = "prompt_too_long"

    def __init__(self, prompt_tokens: int, maximum_tokens: int) -> None:
        super().__init__(f"prompt is too long: {prompt_tokens} tokens > {maximum_tokens} maximum")
        self.prompt_tokens = prompt_tokens
        self.maximum_tokens = maximum_tokens


class NoRoomForOutput(BadRequest):
    """The prompt fits but leaves nothing useful. The client parses the three numbers."""

    code = "no_room_for_output"

    def __init__(self, prompt_tokens: int, output_tokens: int, maximum_tokens: int) -> None:
        super().__init__(
            f"input length and `max_tokens` exceed context limit: {prompt_tokens} + {output_tokens} > {maximum_tokens}"
        )


class BodyTooLarge(BadRequest):
    code = "body_too_large"


class NotAuthenticated(CorralError):
    code = "not_authenticated"


class NotAllowed(CorralError):
    code = "not_allowed"


class NotFound(CorralError):
    code = "not_found"


class Refused(CorralError):
    """True now, may be different in `retry_after_s` seconds."""

    code = "refused"


class QueueFull(Refused):
    code = "queue_full"


class WaitedTooLong(Refused):
    code = "waited_too_long"


class NoWorker(Refused):
    code = "no_worker"


class BrokerDown(Refused):
    code = "broker_down"


class ShuttingDown(Refused):
    code = "shutting_down"


class EngineError(CorralError):
    code = "engine_error"


class EngineLost(EngineError):
    code = "engine_lost"


class EngineRefused(EngineError):
    """The engine answered with an error; `status` is its HTTP status."""

    code = "engine_refused"

    def __init__(self, message: str, *, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


class EngineTimeout(EngineError):
    code = "engine_timeout"


class EngineGarbled(EngineError):
    code = "engine_garbled"


class CallMayBeLost(EngineError):
    code = "call_may_be_lost"


class StoreError(CorralError):
    """A cache could not be saved or restored; it costs a prefill, never an answer. `kind` tells causes apart."""

    code = "store"

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class WorkerLost(CorralError):
    code = "worker_lost"


class DeadlinePassed(CorralError):
    code = "deadline_passed"


class TooSlow(DeadlinePassed):
    code = "too_slow"


class Fenced(CorralError):
    code = "fenced"


class Cancelled(CorralError):
    code = "cancelled"


class ConfigError(CorralError):
    """A setting is unknown or wrong; the message names it and what to write instead."""

    code = "config"


class StartError(CorralError):
    """A part cannot start; the message is one sentence that says which part, why and what to do."""

    code = "start"

    def __init__(self, part: str, message: str) -> None:
        super().__init__(f"{part}: {message}")
        self.part = part
