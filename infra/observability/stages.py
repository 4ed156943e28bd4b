"""Where the time of one request goes.

Owns: marks on the machine's monotonic clock, which all processes of one machine share, and the debug line that tells
them; `infra.bench` reads it. Above the debug level, where nobody traces, a mark costs a look at a variable.
Never: decides anything; of a mark only a trace is made.
"""

import logging
from contextvars import ContextVar
from time import monotonic

import structlog

log = structlog.get_logger("stages")
_marks: ContextVar[dict[str, float] | None] = ContextVar("stages", default=None)


def begin(*, traced: bool = False) -> None:
    """Collect marks in this context from now on, if they will be told."""
    _marks.set({} if traced or log.is_enabled_for(logging.DEBUG) else None)


def mark(stage: str) -> None:
    """`stage` has been reached; only the first time counts."""
    reached = _marks.get()
    if reached is not None and stage not in reached:
        reached[stage] = monotonic()


def marks() -> dict[str, float]:
    """Those that have been reached, in seconds."""
    return _marks.get() or {}


def end(job_id: str) -> None:
    """Tell the marks of a job and forget them."""
    if reached := marks():
        log.debug("stages", job=job_id, **reached)
    _marks.set(None)
