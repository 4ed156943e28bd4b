"""The log line of one request.

Owns: its fields, and that there is exactly one, whatever happened; the span of its trace has the same. No prompt text
at any level.
Never: measures; it takes what the call, the answer and the worker know.
"""

from time import monotonic
from types import TracebackType
from typing import Any, Self

import structlog

from api import metrics
from api.answer import Answer
from api.ledger import Ledger
from api.protocol.request import Call
from infra.errors import Cancelled, CorralError
from infra.observability import stages
from infra.observability.traces import NO_SPAN, Span
from scheduler import figures

log = structlog.get_logger("request")
SPEED_AFTER_S = 0.5  # the pieces of a first moment come together, or not at all: no speed to show


def _nothing(_: str) -> bool:
    return False


class Record:
    """A context manager; leaving it writes the line."""

    def __init__(self, request_id: str, ledger: Ledger, span: Span = NO_SPAN) -> None:
        self.request_id = request_id
        self._ledger = ledger
        self._span = span
        self.call: Call | None = None
        self.answer: Answer | None = None
        self._began_s = monotonic()

    def __enter__(self) -> Self:
        stages.begin()
        stages.mark("arrived")
        self._ledger.began(self.request_id, self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.answer is not None:
            self.answer.explanation.leave()
        failure = (self.answer and self.answer.failure) or error
        outcome = self._outcome(failure)
        fields = {"request_id": self.request_id, "outcome": outcome, **self._who(), **self._what()}
        fields["took_ms"] = round((monotonic() - self._began_s) * 1000)
        if isinstance(failure, CorralError):
            fields["reason"] = failure.code
            if failure.retry_after_s is not None:
                fields["retry_after_s"] = failure.retry_after_s
        write = log.info if outcome in ("done", "left") else log.warning
        write("request", **fields)
        metrics.count(fields, self.answer.counts if self.answer else _nothing)
        self._ledger.ended(self.request_id, fields)
        self._ledger.shapes.ended(self.call, fields)
        failed = fields.get("reason", "internal") if outcome == "failed" else ""
        self._span.end(fields, failed=failed, joined=self.answer.joined if self.answer else "")
        if self.answer is not None:
            stages.end(self.answer.job_id)

    def live(self) -> dict[str, Any]:
        """The fields that are known already, how long it has been here, and how fast its answer comes."""
        now_s = monotonic()
        fields = {"request_id": self.request_id, **self._who(), **self._what()}
        fields["took_ms"] = round((now_s - self._began_s) * 1000)
        if self.answer and self.answer.waits_again:
            fields["waits_again"] = True
        if self.answer and self.answer.first_s is not None:
            told_s = now_s - self.answer.first_s
            fields["told"] = self.answer.pieces
            if told_s >= SPEED_AFTER_S:
                fields["per_s"] = round((self.answer.pieces - self.answer.first_pieces) / told_s, 1)
        return fields

    def _outcome(self, failure: BaseException | None) -> str:
        if failure is None:
            return "done" if self.answer and self.answer.finished else "left"
        return "failed" if isinstance(failure, Exception) and not isinstance(failure, Cancelled) else "left"

    def _who(self) -> dict[str, Any]:
        if self.call is None:
            return {}
        who = self.call.identity
        return {
            "key": who.key_name,
            "agent": who.agent,
            "conversation": who.conversation,
            "kind": who.kind.value,
            "level": self.call.level,
            "model": self.call.request.model,
        }

    def _what(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self.answer:
            fields |= {"job": self.answer.job_id, "worker": self.answer.worker, "shared": self.answer.shared}
            fields["eta_ms"] = self.answer.eta_ms
        if self.answer and (started := self.answer.started):
            if self.answer.first_s is not None:
                fields["first_ms"] = round((self.answer.first_s - self._began_s) * 1000)
            fields |= {"retries": self.answer.attempts - 1, "continued": self.answer.continued}
            fields |= figures.of_started(started)
            if self.call:
                fields["normalised_tokens"] = self.call.dropped.tokens(
                    started.prompt_tokens, self.call.chain.characters[-1]
                )
        if self.answer and (finished := self.answer.finished):
            fields |= figures.of_finished(finished)
        if self.answer and (account := self.answer.explanation.account):
            fields |= {
                "miss": account.cause.value,
                "reuse_expected_tokens": account.expected_tokens,
                "lost_tokens": account.lost_tokens,
            }
        return fields
