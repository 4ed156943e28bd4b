"""Where the time of one request goes.

Owns: marks on the machine's monotonic clock, which all processes of one machine share, and the debug line that tells
them; `infra.bench` reads it. Above the debug level a mark costs a look at a variable.
Never: decides anything; no part reads a mark.
"""

import logging
from contextvars import ContextVar
from time import monotonic

import structlog

log = structlog.get_logger("stages")
_marks: ContextVar[dict[str, float] | None] = ContextVar("stages", default=None)


def begin() -> None:
    """Collect marks in this context from now on, if they will be told."""
    _marks.set({} if log.is_enabled_for(logging.DEBUG) else None)


def mark(stage: str) -> None:
    """`stage` has been reached; only the first time counts."""
    marks = _marks.get()
    if marks is not None and stage not in marks:
        marks[stage] = monotonic()


def end(job_id: str) -> None:
    """Tell the marks of a job and forget them."""
    marks = _marks.get()
    if marks:
        log.debug("stages", job=job_id, **marks)
    _marks.set(None)
