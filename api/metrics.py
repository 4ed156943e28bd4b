"""GET /metrics, for Prometheus.

Owns: the route, what the log line of a request adds to the counters, and the gauges of the cluster as this process
sees it when it is asked.
Never: asks the broker; names and buckets (`infra.observability.metrics`).
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from api.house import House
from infra.observability import metrics
from scheduler.contract import ClusterView, WorkerInfo, WorkerState, WorkerView

router = APIRouter()
VERSION = version("corral")
NOBODY = ""  # of a request that was placed with no worker


@router.get("/metrics")
async def show(request: Request) -> Response:
    """All counters of this process, and the cluster's gauges; a second old while the broker answers."""
    house: House = request.app.state.house
    house.keyring.caller(request.headers)
    cluster = CollectorRegistry()
    cluster.register(Cluster(house))
    return Response(generate_latest(_counters()) + generate_latest(cluster), media_type=CONTENT_TYPE_LATEST)


def _counters() -> CollectorRegistry:
    """Those of this process, or of all processes behind one port."""
    if not os.environ.get(metrics.FOLDER):
        return metrics.API
    registry = CollectorRegistry()
    registry.register(_OfAll())
    return registry


class _OfAll(Collector):
    """What all processes have counted. Their files have a worker's figures too, which none of them counts."""

    def collect(self) -> Iterable[Metric]:
        own = {family.name for family in metrics.API.collect()}
        found: Iterable[Metric] = MultiProcessCollector(None).collect()  # type: ignore[no-untyped-call]
        return [family for family in found if family.name in own]


def count(line: Mapping[str, Any], counts: Callable[[str], bool]) -> None:
    """Add a request that has ended; `line` are the fields of its log line, so that both always agree.

    `counts` says whether a part of the work is to be added: the engine did it once for all who share its answer.
    """
    worker, kind, model = line.get("worker", NOBODY), line.get("kind", NOBODY), line.get("model", NOBODY)
    where = (worker, model, kind)
    level = str(line.get("level", NOBODY))
    metrics.REQUESTS.labels(*where, level, line["outcome"]).inc()
    metrics.WHOLE.labels(*where).observe(line["took_ms"] / 1000)
    if reason := line.get("reason"):
        metrics.REFUSALS.labels(reason).inc()
    if "first_ms" in line:
        metrics.FIRST_TOKEN.labels(*where).observe(line["first_ms"] / 1000)
    if "queue_ms" in line and counts("start"):
        _count_started(line, where, level)
    if "output_tokens" in line and counts("end"):
        metrics.PREFILL.labels(*where).observe(line["prefill_ms"] / 1000)
        metrics.DECODE.labels(*where).observe(line["decode_ms"] / 1000)
        metrics.TOKENS.labels(*where, "output").inc(line["output_tokens"])


def _count_started(line: Mapping[str, Any], where: tuple[str, str, str], level: str) -> None:
    worker = where[0]
    metrics.QUEUE.labels(worker, level).observe(line["queue_ms"] / 1000)
    metrics.SOURCES.labels(worker, line["source"]).inc()
    metrics.TOKENS.labels(*where, "prompt").inc(line["prompt_tokens"])
    metrics.TOKENS.labels(*where, "cached").inc(line["cached_tokens"])
    if line["retries"]:
        metrics.RETRIES.labels(worker).inc(line["retries"])
    if line["continued"]:
        metrics.CONTINUED.labels(worker).inc()


class Cluster(Collector):
    """What one process sees of the cluster."""

    def __init__(self, house: House) -> None:
        self._house = house

    def collect(self) -> Iterable[Metric]:
        house, view = self._house, self._house.view
        yield _gauge("build_info", "This version of Corral; always 1.", ("version",), [((VERSION,), 1)])
        yield _gauge("broker_up", "1 while the broker answers.", (), [((), int(house.membership.fresh))])
        yield from _workers(view.workers)
        yield from _lines(view)
        yield from _counted(view.workers)
        yield from _misses(house.turns.totals)
        yield _waits(house.dispatcher.forecast.figures(house.models()))


def _workers(workers: Sequence[WorkerView]) -> Iterable[Metric]:
    states = [((one.info.name, state.value), int(one.info.state is state)) for one in workers for state in WorkerState]
    yield _gauge("worker_state", "1 for the state that a worker is in.", ("worker", "state"), states)
    plain = (
        ("slots", "Slots of a worker's engine.", lambda one: len(one.info.slots)),
        ("busy_slots", "Slots that are in use.", lambda one: sum(slot.busy for slot in one.info.slots)),
        ("slot_tokens", "Tokens that the slots of a worker hold.", lambda one: sum(s.tokens for s in one.info.slots)),
        ("homes", "Conversations that live with a worker.", lambda one: one.homes),
        ("engine_memory_bytes", "Resident memory of a worker's engine.", lambda one: one.info.engine_bytes),
        ("context_tokens", "The window of a slot.", lambda one: one.info.context_tokens),
        ("store_bytes", "What the saved caches of a worker take.", lambda one: one.info.store.used_bytes),
    )
    for name, words, value in plain:
        yield _gauge(name, words, ("worker",), [((one.info.name,), value(one)) for one in workers])
    models = Counter((one.info.name, one.info.model, one.info.model_hash, one.info.engine) for one in workers)
    yield _gauge("model_info", "What a worker serves; always 1.", ("worker", "model", "hash", "engine"), models.items())


def _lines(view: ClusterView) -> Iterable[Metric]:
    """Of the living and of those whose lease is over while jobs are left."""
    lines = [(one.info.name, one.queued, one.running) for one in view.workers]
    lines += [(one.name, one.queued, one.running) for one in view.lost]
    queued = [((name, str(level)), n) for name, levels, _ in lines for level, n in enumerate(levels)]
    yield _gauge("queue_jobs", "Jobs that wait in the line of a worker.", ("worker", "level"), queued)
    running = [((name,), n) for name, _, n in lines]
    yield _gauge("running_jobs", "Jobs that a worker is working on.", ("worker",), running)
    yield _gauge("lost_workers", "Workers that are gone while jobs of theirs are left.", (), [((), len(view.lost))])


def _counted(workers: Sequence[WorkerView]) -> Iterable[Metric]:
    """What the workers' leases tell since the last start of each one's engine; a counter may begin again at zero."""
    told: tuple[tuple[str, str, Callable[[WorkerInfo], int]], ...] = (
        ("evictions", "Slots that one conversation lost to another.", lambda one: one.tallies.evictions),
        ("saves", "Caches of slots that were saved.", lambda one: one.store.saves),
        ("restores", "Caches of slots that were restored.", lambda one: one.store.restores),
        ("store_failures", "Saves and restores that failed.", lambda one: one.store.failures),
        ("drafted_tokens", "Tokens that speculation proposed.", lambda one: one.tallies.drafted_tokens),
        ("accepted_draft_tokens", "Those that were right.", lambda one: one.tallies.accepted_tokens),
    )
    for name, words, value in told:
        family = CounterMetricFamily(f"corral_worker_{name}", words, labels=("worker",))
        for one in workers:
            family.add_metric((one.info.name,), value(one.info))
        yield family


def _misses(totals: Mapping[str, Mapping[str, int]]) -> Iterable[Metric]:
    for what, words in (
        ("count", "Answers that found less in the cache than they could have, by cause."),
        ("tokens", "Tokens that were prefilled again, by cause."),
        ("ms", "Milliseconds that this took, by cause."),
    ):
        family = CounterMetricFamily(f"corral_cache_misses_{what}", words, labels=("cause",))
        for cause, numbers in totals.items():
            family.add_metric((cause,), numbers[what])
        yield family


def _waits(figures: Mapping[str, Any]) -> Metric:
    error = [(("median",), figures["median_error_s"]), (("p90",), figures["p90_error_s"])]
    return _gauge("wait_error_seconds", "How wrong expected waits were lately.", ("quantile",), error)


def _gauge(name: str, words: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(f"corral_{name}", words, labels=labels)
    for at, value in values:
        family.add_metric(at, value)
    return family
