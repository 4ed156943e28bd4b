"""One trace a request, where an address for traces is set (`trace_endpoint`).

Owns: what a part of Corral asks of a trace, and the answer where nobody traces, which costs a call.
Never: imports OpenTelemetry (`otlp` does, where traces are made); counts or logs: what a span says are the fields of
the log line, by their names.

A part of a trace is named as W3C Trace Context writes it: 00-<trace>-<span>-<flags>.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from infra.errors import ConfigError
from infra.settings import Settings

PACKAGE = "opentelemetry.exporter.otlp.proto.http"


class Stage(NamedTuple):
    """A part of a span that has a name: from when to when, on the machine's monotonic clock."""

    name: str
    begin_s: float
    end_s: float


class Span(Protocol):
    """Something that has begun."""

    @property
    def traceparent(self) -> str:
        """Its name in its trace, for whoever goes on with it; "" where nobody traces."""

    def end(
        self, fields: Mapping[str, Any], stages: Sequence[Stage] = (), *, failed: str = "", joined: str = ""
    ) -> None:
        """It is over. `stages` become its children; `failed` is a word for why it did not end well; `joined` is the
        traceparent of another request, whose answer it was given."""


class Traces(Protocol):
    """The traces of one process."""

    @property
    def on(self) -> bool:
        """Whether any are made."""

    def begin(self, name: str, headers: Mapping[str, str]) -> Span:
        """A request of a client, in the trace that its headers name, else in one of its own."""

    def go_on(self, name: str, traceparent: str, span_id: str, begun_s: float) -> Span:
        """A part of what `traceparent` names, with this id (16 hexadecimal digits), begun at a time of the monotonic
        clock."""

    def close(self) -> None:
        """Send what is left, for a short while at most."""


class NoSpan:
    """Nobody traces."""

    traceparent = ""

    def end(
        self, fields: Mapping[str, Any], stages: Sequence[Stage] = (), *, failed: str = "", joined: str = ""
    ) -> None:
        pass


class NoTraces:
    """Traces that nobody makes."""

    on = False

    def begin(self, name: str, headers: Mapping[str, str]) -> Span:  # noqa: ARG002  # nobody looks at them
        return NO_SPAN

    def go_on(self, name: str, traceparent: str, span_id: str, begun_s: float) -> Span:  # noqa: ARG002
        return NO_SPAN

    def close(self) -> None:
        pass


NO_SPAN = NoSpan()
NO_TRACES = NoTraces()


def traces(settings: Settings, part: str, name: str) -> Traces:
    """Those of this process, which is a `part` (api, worker) with a `name`. Raises ConfigError when they are asked for
    and their packages are missing."""
    if not settings.trace_endpoint:
        return NO_TRACES
    check(settings)
    from infra.observability.otlp import OtlpTraces  # noqa: PLC0415  # it may not be there, and takes 0.2 s to load

    return OtlpTraces(settings.trace_endpoint, part, name)


def check(settings: Settings) -> None:
    """Raises ConfigError when traces are asked for and their packages are missing."""
    if settings.trace_endpoint and not _is_there(PACKAGE):
        raise ConfigError(
            "trace_endpoint: traces need OpenTelemetry, which is not here: pip install '.[traces]' in Corral's folder, "
            "or leave it empty"
        )


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of a package above it
        return False
