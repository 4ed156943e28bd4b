"""Fixtures of the acceptance tier only: the real client, and whole clusters.

Owns: what needs real programs from outside, and clusters, each on a broker of its own. Shared fixtures are one folder
up.
Never: a test.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.broker import Broker
from tests.doubles.claude import ClaudeCode, find_or_install
from tests.doubles.cluster import Cluster
from tests.doubles.scripted_model import Script

StartCluster = Callable[..., Cluster]
RealCluster = Callable[[Script], Cluster]

WINDOW_TOKENS = 65536


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[Cluster]:
    """A cluster and its broker in `folder`; `options` are those of Cluster."""
    for name in ("broker", "cluster"):
        (folder / name).mkdir(parents=True)
    with Broker(folder / "broker") as broker, Cluster(folder / "cluster", broker.url, **options) as cluster:
        yield cluster


@pytest.fixture
def claude(tmp_path: Path) -> ClaudeCode:
    """The real Claude Code, with workspaces in this test's folder."""
    return ClaudeCode(find_or_install(), tmp_path / "claude")


@pytest.fixture
def start_cluster(tmp_path: Path) -> Iterator[StartCluster]:
    """A function that starts a cluster of this test's own; it takes the options of Cluster."""
    with ExitStack() as clusters:
        yield lambda **options: clusters.enter_context(
            running(tmp_path / f"{len(list(tmp_path.iterdir()))}", **options)
        )


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers with four slots each on the stand-in engine, which also notes the prompts it was given."""
    with running(tmp_path_factory.mktemp("standin") / "0", standin={"note_prompts": 1}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, model_path: Callable[[Script], Path]) -> Iterator[RealCluster]:
    """A function from a script to a cluster on the real engine that runs it: one worker with four slots."""
    with ExitStack() as clusters:
        yield _starter(clusters, tmp_path_factory, model_path, workers=1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, model_path: Callable[[Script], Path]) -> Iterator[RealCluster]:
    """As `real`, with two workers."""
    with ExitStack() as clusters:
        yield _starter(clusters, tmp_path_factory, model_path, workers=2)


def _starter(
    clusters: ExitStack,
    tmp_path_factory: pytest.TempPathFactory,
    model_path: Callable[[Script], Path],
    *,
    workers: int,
) -> RealCluster:
    started: dict[str, Cluster] = {}

    def start(script: Script) -> Cluster:
        if script.name not in started:
            folder = tmp_path_factory.mktemp(script.name) / "0"
            options: dict[str, Any] = {"engine": "embedded", "context_tokens": WINDOW_TOKENS, "workers": workers}
            started[script.name] = clusters.enter_context(running(folder, model=model_path(script), **options))
        return started[script.name]

    return start
