"""One attempt at an answer, as its trace tells it.

Owns: the fields of its span, and what its time went into: queue, restore, prefill, decode.
Never: measures; an ended answer's parts last as long as its log line says, back from its end. Those of one that did not
end are what this worker saw of them.
"""

from collections.abc import Mapping
from time import monotonic

from infra.observability.traces import Stage, Traces
from scheduler import figures
from scheduler.contract import ClaimedJob
from scheduler.stream import Writer


def tell(
    traces: Traces, job: ClaimedJob, model: str, worker: str, answer: Writer, outcome: str, reason: str,
    marks: Mapping[str, float],
) -> None:  # fmt: skip
    """The span of an attempt that is over. `outcome` is that of the worker's `corral_attempts`, `marks` the time at
    which each stage was reached, the monotonic clock's."""
    begun_s = marks["claimed"] - job.waited_ms / 1000
    span = traces.go_on("attempt", job.traceparent, job.span_id, begun_s)
    fields = {
        "job": job.id,
        "key": job.key,
        "agent": job.agent,
        "conversation": job.conversation,
        "kind": job.kind.value,
        "level": job.level,
        "model": model,
        "worker": worker,
        "attempt": job.attempt,
        "outcome": outcome,
    }
    fields |= figures.of_started(answer.started) if answer.started else {}
    fields |= figures.of_finished(answer.finished) if answer.finished else {}
    fields |= {"reason": reason} if reason else {}
    failed = reason or outcome if outcome in ("failed", "again") else ""
    span.end(fields, [Stage("queue", begun_s, marks["claimed"]), *_stages(answer, marks)], failed=failed)


def _stages(answer: Writer, marks: Mapping[str, float]) -> list[Stage]:
    started, finished = answer.started, answer.finished
    stages: list[Stage] = []
    if started is not None and started.restore_ms and (ready_s := marks.get("rendered")):
        stages.append(Stage("restore", ready_s - started.restore_ms / 1000, ready_s))
    if finished is not None:
        end_s = marks.get("generated", monotonic())
        decoding_s = end_s - finished.decode_ms / 1000
        prefill = Stage("prefill", decoding_s - finished.prefill_ms / 1000, decoding_s)
        return [*stages, prefill, Stage("decode", decoding_s, end_s)]
    if (prompt_s := marks.get("prompt")) is not None:
        first_s = marks.get("token")
        stages.append(Stage("prefill", prompt_s, first_s or monotonic()))
        stages += [Stage("decode", first_s, monotonic())] if first_s else []
    return stages
