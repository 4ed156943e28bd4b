"""Fixtures for every tier: a clean environment, a broker, scripted models; and how Hypothesis runs.

Owns: what tests share. The helpers themselves are in `tests.doubles`, to be imported where they are used.
Never: a part of Corral.
"""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.doubles import scripted_model
from tests.doubles.broker import Broker
from tests.doubles.claude import ClaudeCode, find_or_install
from tests.doubles.scripted_model import Script

# A busy machine must not fail a property.
settings.register_profile("no-clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no-clock")

FOREIGN = ("CORRAL_", "ANTHROPIC_", "CLAUDE_", "STANDIN_", "LLAMA_")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the developer's settings, keys or proxies."""
    for name in [name for name in os.environ if name.startswith(FOREIGN) or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module", autouse=True)
def no_garbage() -> Iterator[None]:
    """What a module forgot to close is found while that module can still be blamed for it."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def session_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def broker(session_broker: Broker) -> Broker:
    """A running, empty Valkey; shared by the tests one after the other. Not to be stopped."""
    session_broker.flush()
    return session_broker


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A Valkey of this test's own, which it may freeze, kill and start again."""
    folder = tmp_path / "broker"
    folder.mkdir()
    with Broker(folder) as broker:
        yield broker


@pytest.fixture
def broker_url(broker: Broker) -> str:
    return broker.url


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Script], Path]:
    """A function from a script to the path of its GGUF, each written once a session."""
    folder = tmp_path_factory.mktemp("models")
    return lambda script: scripted_model.write(script, folder)


@pytest.fixture
def claude(tmp_path: Path) -> ClaudeCode:
    """The real Claude Code, with workspaces in this test's folder."""
    return ClaudeCode(find_or_install(), tmp_path / "claude")
