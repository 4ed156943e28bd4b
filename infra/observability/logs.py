"""How Corral logs.

Owns: one structlog set-up for every part: JSON lines off a terminal, readable text on one.
Never: what is logged; and no prompt text at any level, which is each caller's duty.
"""

import logging
import sys
from contextlib import suppress
from typing import Any, TextIO

import structlog

from infra.config import Settings

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure(settings: Settings, part: str) -> None:
    """Log to standard output at the level and in the form of `settings`; every line names the part."""
    text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stdout.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty()) if text else _json()
    shared = [
        structlog.contextvars.merge_contextvars,
        _add_severity,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _naming(part),
    ]
    output: Any = Output(sys.stdout)
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.log_level]),
        logger_factory=structlog.PrintLoggerFactory(output),
        cache_logger_on_first_use=True,
    )
    foreign = logging.StreamHandler(output)
    foreign.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[foreign], level=logging.WARNING, force=True)


class Output:
    """A stream that loses lines it cannot write: a full disk must end no request and no thread that logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def _add_severity(_: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """The usual name, `level`, is the priority of a request here."""
    event["severity"] = {"warn": "warning", "exception": "error"}.get(method, method)
    return event


def _json() -> Any:
    return structlog.processors.JSONRenderer(ensure_ascii=False)


def _naming(part: str) -> Any:
    def add_part(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event.setdefault("part", part)
        return event

    return add_part
