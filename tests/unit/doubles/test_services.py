"""What is missing is skipped on a laptop and fails where everything is required."""

import shutil
from pathlib import Path

import pytest

from tests.doubles import claude, services
from tests.doubles.services import free_port, missing, wait_for

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("required", "raised"), [(False, pytest.skip.Exception), (True, pytest.fail.Exception)])
def test_a_missing_service(monkeypatch: pytest.MonkeyPatch, required: bool, raised: type[BaseException]) -> None:
    monkeypatch.setattr(services, "REQUIRE_ALL", required)
    with pytest.raises(raised, match="npm is not here: install Node 20"):
        missing("npm", "install Node 20")


def test_claude_code_without_npm_is_a_missing_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(services, "REQUIRE_ALL", True)
    monkeypatch.setattr(claude, "FOLDER", tmp_path / "none")
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "npm" else f"/bin/{name}")
    with pytest.raises(pytest.fail.Exception, match="npm is not here"):
        claude.find_or_install()


def test_a_wait_gives_the_answer_or_says_what_for() -> None:
    assert wait_for(lambda: "there", "it") == "there"
    with pytest.raises(AssertionError, match="in vain for a miracle; last seen: 0"):
        wait_for(lambda: 0, "a miracle", timeout_s=0)


def test_ports_are_free_and_differ() -> None:
    assert len({free_port() for _ in range(5)}) > 1
