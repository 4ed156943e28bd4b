"""The dashboard and the alert rules ask for figures, labels and words that exist."""

import json
import re
from types import SimpleNamespace
from typing import cast

import pytest

from api.errors import TABLE
from api.house import House
from api.metrics import Cluster
from infra.observability import metrics
from scheduler.contract import ClusterView, WorkerInfo, WorkerState, WorkerView
from tests.doubles.processes import REPOSITORY

pytestmark = pytest.mark.contracts
FOLDER = REPOSITORY / "infra" / "deploy"
MISS = {"count": 1, "tokens": 1, "ms": 1}
WORDS = {"state": {state.value for state in WorkerState}, "reason": set(TABLE), "part": {"prompt", "cached", "output"}}
FIGURES = {"median_error_s": 0.0, "p90_error_s": 0.0}


def house() -> House:
    """As much of a house as the collector looks at."""
    worker = WorkerView(info=WorkerInfo(name="w1", incarnation="i", state=WorkerState.READY))
    made = SimpleNamespace(
        view=ClusterView(now_ms=0, workers=(worker,)),
        membership=SimpleNamespace(fresh=True),
        turns=SimpleNamespace(totals={"evicted": MISS}),
        dispatcher=SimpleNamespace(forecast=SimpleNamespace(figures=lambda _: FIGURES)),
        models=lambda: ["m"],
    )
    return cast(House, made)


def known() -> dict[str, set[str]]:
    """Each name that can be asked for, and its labels."""
    found: dict[str, set[str]] = {}
    for registry in (metrics.API, metrics.WORKER):
        for collector, names in registry._collector_to_names.items():
            for name in names:
                found[name] = set(getattr(collector, "_labelnames")) | {"le"}  # noqa: B009
    for family in Cluster(house()).collect():
        for sample in family.samples:
            found[sample.name] = set(sample.labels)
    return found


def test_whatever_process_is_asked_its_counters_are_those_of_all() -> None:
    """What it counts in its own memory would jump back and forth, as one process or another one answers."""
    counters = {family.name for family in Cluster(house()).collect() if family.type == "counter"}
    kept = {name for name in counters if name.startswith(("corral_cache_misses_", "corral_worker_"))}
    assert counters == kept, "these are kept by the broker, or told by each worker's lease"


@pytest.mark.parametrize("file", ["grafana-dashboard.json", "alerts.yaml"])
def test_every_figure_that_is_asked_for_exists_with_its_labels(file: str) -> None:
    names, text = known(), (FOLDER / file).read_text()
    asked = re.findall(r"(corral_[a-z0-9_]+)(?:{([a-z]+)=~?\\?\"([a-z_|]+)\\?\")?", text)
    assert len(asked) > 5
    for name, label, words in asked:
        assert name in names, name
        assert not label or label in names[name], (name, label)
        assert not label or set(words.split("|")) <= WORDS[label], (name, words)


def test_what_figures_are_summed_by_are_their_labels() -> None:
    names = known()
    everywhere = {"instance", "le"}
    for panel in json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            for by, name in re.findall(r"by \(([a-z_, ]+)\) \((?:rate\()?(corral_[a-z_]+)", target["expr"]):
                assert set(by.split(", ")) <= names[name] | everywhere, target["expr"]


@pytest.mark.parametrize("file", ["grafana-dashboard.json", "alerts.yaml"])
def test_what_each_gateway_tells_of_the_whole_cluster_is_not_added_up_over_gateways(file: str) -> None:
    text = (FOLDER / file).read_text()
    for name in {sample.name for family in Cluster(house()).collect() for sample in family.samples}:
        assert not re.search(rf"sum(?: by \([a-z_, ]+\))? ?\((?:rate\()?{name}\b", text), name


def test_the_dashboard_has_no_two_panels_in_one_place() -> None:
    places = [
        tuple(panel["gridPos"].items())
        for panel in json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]
    ]
    assert len(set(places)) == len(places)
