"""What an attempt's span says of an answer that ended, and of one that did not."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from infra.observability import traces
from infra.observability.traces import NoTraces, Stage
from scheduler.contract import ClaimedJob, Finished, Kind, Started, StopReason
from scheduler.stream import Writer
from workers import tracing

pytestmark = pytest.mark.unit
PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
JOB = ClaimedJob(
    id="j", attempt=2, level=5, agent="me", conversation="c", kind=Kind.MAIN, queue_ms=9000, may_use_reserve=False,
    body=b"", key="k", waited_ms=250, traceparent=PARENT, span_id="c" * 16,
)  # fmt: skip
STARTED = Started("w1", 0, 2, 9000, prompt_tokens=100, cached_tokens=60, restored_tokens=60, restore_ms=500)
FINISHED = Finished(
    StopReason.END_TURN, None, 100, 60, 7, prefill_ms=1000, decode_ms=2000, model_hash="h", engine_bytes=1
)
MARKS = {"picked_up": 10.0, "claimed": 11.0, "rendered": 12.0, "prompt": 12.5, "token": 13.0, "generated": 15.0}


class Told(NoTraces):
    """One span, as it was told."""

    on = True
    fields: Mapping[str, Any]
    stages: Sequence[Stage]
    failed: str

    def go_on(self, name: str, traceparent: str, span_id: str, begun_s: float) -> traces.Span:
        self.named = (name, traceparent, span_id, begun_s)
        return cast(traces.Span, self)

    def end(
        self, fields: Mapping[str, Any], stages: Sequence[Stage] = (), *, failed: str = "", joined: str = ""
    ) -> None:
        assert not joined
        self.fields, self.stages, self.failed = fields, stages, failed


def told(upto: str, outcome: str, reason: str = "", *, started: bool = True, finished: bool = False) -> Told:
    """The span of an attempt that reached these stages."""
    marks = dict(list(MARKS.items())[: list(MARKS).index(upto) + 1])
    answer = SimpleNamespace(started=STARTED if started else None, finished=FINISHED if finished else None)
    span = Told()
    tracing.tell(span, JOB, "m", "w1", cast(Writer, answer), outcome, reason, marks)
    return span


def test_of_an_answer_that_ended_the_stages_last_as_its_log_line_says_back_from_its_end() -> None:
    span = told("generated", "done", finished=True)
    assert span.named == ("attempt", PARENT, "c" * 16, 10.75)
    assert span.stages == [
        Stage("queue", 10.75, 11.0),
        Stage("restore", 11.5, 12.0),
        Stage("prefill", 12.0, 13.0),
        Stage("decode", 13.0, 15.0),
    ]
    assert (span.fields["attempt"], span.fields["queue_ms"], span.fields["output_tokens"]) == (2, 9000, 7)
    assert (span.failed, "reason" in span.fields) == ("", False)


@pytest.mark.parametrize(
    ("upto", "started", "stages"),
    [
        ("claimed", False, ["queue"]),
        ("prompt", True, ["queue", "restore", "prefill"]),
        ("token", True, ["queue", "restore", "prefill", "decode"]),
    ],
)
def test_of_one_that_did_not_end_what_was_seen_is_told(upto: str, started: bool, stages: list[str]) -> None:
    span = told(upto, "failed", "engine_lost", started=started)
    assert [one.name for one in span.stages] == stages
    assert all(one.begin_s <= one.end_s for one in span.stages)
    assert (span.failed, span.fields["reason"]) == ("engine_lost", "engine_lost")


@pytest.mark.parametrize(("outcome", "failed"), [("again", "again"), ("stopped", "")])
def test_one_that_is_tried_again_has_failed_and_one_that_nobody_wants_any_more_has_not(
    outcome: str, failed: str
) -> None:
    assert told("token", outcome).failed == failed
