"""Every bench that compares asks two real gateways in turn, tells ratios and writes them; failures end it with 1."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from infra.bench import agents, fairness, four, load, overhead, overload, warm
from infra.bench import house as houses
from infra.errors import ConfigError, EngineError
from tests.acceptance.conftest import running
from tests.doubles.cluster import Cluster

pytestmark = pytest.mark.integration

ARMS = {"one", "two"}
SMALL: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "load": (load.main, {"repeat": 2, "clients": 2, "requests": 4}),
    "four": (four.main, {"rounds": 2, "agents": 2, "least": 20, "most": 40, "output_tokens": 4}),
    "overhead": (overhead.main, {"repeat": 2, "pairs": 2, "clients": 2, "requests": 4, "body_bytes": 2_000}),
    "agents": (agents.main, {"repeat": 2, "agents": 2, "turns": 2, "base": 300, "words": "20-40", "gap": 0.0}),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One worker behind two API processes, so two addresses."""
    with running(tmp_path_factory.mktemp("compared"), workers=1, slots=4, api_count=2) as cluster:
        yield cluster


@pytest.mark.parametrize("name", SMALL)
def test_two_addresses_are_compared(
    name: str, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench, small = SMALL[name]
    first, second = cluster.urls
    file = tmp_path / "figures.json"
    bench(compare_urls=[f"one={first}"], more=[f"two={second}"], json_file=file, **small)
    shown, saved = capsys.readouterr().out, orjson.loads(file.read_bytes())
    assert "Ratio to one, of 2 rounds: median (least-most)" in shown
    assert set(saved["arms"]) == ARMS
    assert saved["ratios_to"]["arm"] == "one"
    ratios = saved["ratios_to"]["median_least_most"]["two"]
    assert ratios
    assert all(least <= middle <= most for middle, least, most in ratios.values())


def test_one_address_is_asked_all_at_once_and_one_at_a_time(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    four.main(url=cluster.url, json_file=file, **SMALL["four"][1])
    arms = orjson.loads(file.read_bytes())["arms"]
    assert set(arms) == {"all at once", "one at a time"}
    assert [(run["requests"], run["failed"]) for rounds in arms.values() for run in rounds] == [(2, 0)] * 4


def test_an_engine_is_asked_in_its_own_form_beside_the_gateway(cluster: Cluster, tmp_path: Path) -> None:
    engine = houses.running(cluster.url, "", "", None).engine
    file = tmp_path / "figures.json"
    urls = [f"corral={cluster.url}", f"engine={engine.url}/v1/chat/completions"]
    load.main(compare_urls=urls, key=engine.key, json_file=file, **SMALL["load"][1])
    arms = orjson.loads(file.read_bytes())["arms"]
    assert [run["failed"] for rounds in arms.values() for run in rounds] == [0] * 4


def test_a_warm_beginning_is_found_again_at_any_address(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    warm.main(url=cluster.url, base=600, repeat=1, json_file=file)
    arms = orjson.loads(file.read_bytes())["arms"]
    cold, same = arms["cold"][0], arms["same agent"][0]
    assert cold["cached_tokens"] < 100 < same["cached_tokens"]
    assert 500 < cold["prompt_tokens"] < 900
    assert "times sooner than cold" in capsys.readouterr().out


@pytest.mark.parametrize("name", SMALL)
def test_a_request_that_fails_is_an_error_with_the_address_that_refused_it(name: str, cluster: Cluster) -> None:
    bench, small = SMALL[name]
    urls = [f"good={cluster.url}", f"bad={cluster.url}/nowhere"]
    with pytest.raises(EngineError, match=r"^requests failed: \d+ of bad; bad: status 404"):
        bench(compare_urls=urls, **small)


@pytest.mark.parametrize("name", SMALL)
def test_who_runs_and_who_is_to_be_started_are_not_compared(name: str) -> None:
    with pytest.raises(ConfigError, match="--compare: asks who runs already; leave --start out"):
        SMALL[name][0](start=True, compare_urls=["http://127.0.0.1:1", "http://127.0.0.1:2"])


@pytest.mark.parametrize("name", SMALL)
def test_an_address_where_nobody_is_is_said_before_anything_is_asked(name: str, cluster: Cluster) -> None:
    bench, small = SMALL[name]
    with pytest.raises(ConfigError, match="nobody answers there"):
        bench(compare_urls=[cluster.url, "http://127.0.0.1:1"], **small)


@pytest.mark.parametrize("bench", [overhead.main, fairness.main, overload.main])
def test_no_corral_at_the_address_is_said_in_a_sentence(bench: Callable[..., None], cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="no Corral answers there"):
        bench(url="http://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"tells no status \(404\)"):
        bench(url=f"{cluster.url}/nowhere")


def test_the_turns_are_drawn(cluster: Cluster, tmp_path: Path) -> None:
    agents.main(url=cluster.url, plot_file=tmp_path / "turns", **{**SMALL["agents"][1], "repeat": 1})
    assert {file.name for file in tmp_path.iterdir()} == {"turns.png", "turns.svg"}
    assert ">corral" in (tmp_path / "turns.svg").read_text()
