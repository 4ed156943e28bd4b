"""The span of an attempt that died with its worker, of the record that is left of it."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from infra import keys
from infra.observability.traces import NO_TRACES, NoTraces, Span, Stage
from scheduler.contract import ClaimedJob
from scheduler.lost_attempts import LostAttempts
from tests.integration.scheduler.store import Store, spec

pytestmark = pytest.mark.integration
PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
Told = tuple[str, str, Mapping[str, Any], Sequence[Stage], str]


class Spans(NoTraces):
    """Those that were told: whose part, with which id, what, and why it failed."""

    on = True

    def __init__(self) -> None:
        self.told: list[Told] = []
        self._named = ("", "", 0.0)

    def go_on(self, name: str, traceparent: str, span_id: str, begun_s: float) -> Span:
        assert name == "attempt"
        self._named = (traceparent, span_id, begun_s)
        return cast(Span, self)

    def end(
        self, fields: Mapping[str, Any], stages: Sequence[Stage] = (), *, failed: str = "", joined: str = ""
    ) -> None:
        traceparent, span_id, begun_s = self._named
        assert (stages[0].begin_s, joined) == (begun_s, "")
        self.told.append((traceparent, span_id, fields, stages, failed))


async def running(store: Store, traceparent: str) -> ClaimedJob:
    worker = store.worker()
    await store.admit(spec().model_copy(update={"traceparent": traceparent}), worker.name)
    claimed = worker.claims.claim()
    assert claimed is not None
    return claimed


async def test_it_has_the_id_that_its_worker_would_have_given_it_although_the_record_has_gone_on(store: Store) -> None:
    spans = Spans()
    job = await running(store, PARENT)
    lost = await LostAttempts(store.redis, spans).look(job.id, "w1")
    store.raw.delete(keys.job(job.id))  # it has been taken from the dead worker
    lost.tell()
    [(parent, span_id, fields, stages, failed)] = spans.told
    assert (parent, span_id, failed) == (PARENT, job.span_id, "worker_lost")
    assert fields == {
        "job": job.id, "worker": "w1", "outcome": "lost", "attempt": job.attempt, "level": job.level,
        "agent": job.agent, "conversation": job.conversation, "kind": job.kind.value, "key": job.key,
    }  # fmt: skip
    [queue] = stages
    assert (queue.name, round((queue.end_s - queue.begin_s) * 1000)) == ("queue", job.waited_ms)


async def test_of_one_that_nobody_traces_or_that_is_gone_already_nothing_is_told(store: Store) -> None:
    spans = Spans()
    lost = LostAttempts(store.redis, spans)
    job = await running(store, "")
    (await lost.look(job.id, "w1")).tell()
    (await lost.look("gone", "w1")).tell()
    assert spans.told == []


async def test_without_traces_the_broker_is_not_asked(store: Store) -> None:
    job = await running(store, PARENT)
    asked = int(store.raw.info("commandstats").get("cmdstat_hmget", {}).get("calls", 0))
    (await LostAttempts(store.redis, NO_TRACES).look(job.id, "w1")).tell()
    assert int(store.raw.info("commandstats").get("cmdstat_hmget", {}).get("calls", 0)) == asked
