"""What one answer uses of the engine, told to the books when it is over, however it ends.

Owns: counting tokens into service, and that each claimed job is settled once.
Never: writes a delta, holds a slot; what service means for the order is `scheduler.policy.line`'s.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

import structlog

from infra.errors import BrokerDown
from scheduler.claims import Claims
from scheduler.contract import ClaimedJob, Kind, Rates, StopReason
from workers.llama.client import End

log = structlog.get_logger(__name__)


class Used:
    """What an answer has used so far. Nothing, as long as the engine has not begun with it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._begun_s: float | None = None
        self._prefilled = False
        self._new_tokens = self._output_tokens = 0
        self.end: End | None = None
        self.said_tokens = 0  # of the answer, by attempts before; they were charged then

    def prompt(self, new_tokens: int) -> None:
        """The engine has begun to prefill so many tokens."""
        self._begun_s, self._new_tokens = self._clock(), new_tokens

    def token(self) -> None:
        """Something was generated; until the end tells the number, each piece counts as one token."""
        self._prefilled = True
        self._output_tokens += 1

    def ended(self, end: End) -> None:
        self._prefilled, self._output_tokens, self.end = True, end.output_tokens, end

    def service_ms(self, rates: Rates) -> float:
        """At the worker's rates. A prefill that was cut short counts for no longer than it took."""
        if self._begun_s is None:
            return 0.0
        prefill_ms = self._new_tokens / rates.prefill_tokens_per_s * 1000
        if not self._prefilled:
            prefill_ms = min(prefill_ms, (self._clock() - self._begun_s) * 1000)
        return prefill_ms + self._output_tokens / rates.decode_tokens_per_s * 1000


@contextmanager
def settled(claims: Claims, job: ClaimedJob, rates: Callable[[], Rates]) -> Iterator[Used]:
    """What is used inside the block is charged when it is left, in place of what the claim expected."""
    used = Used()
    try:
        yield used
    finally:
        end = used.end
        learnt = used.said_tokens + end.output_tokens if end is not None and job.kind is not Kind.WARM else None
        calls = end is not None and end.stop_reason is StopReason.TOOL_USE
        try:
            claims.settle(job, used.service_ms(rates()), learnt, in_tool_call=calls)
        except BrokerDown as error:  # the charge of the claim stands; it fades
            log.warning("job_not_settled", job=job.id, reason=error.message)
