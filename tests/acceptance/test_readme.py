"""The first command of the README, in a clone, in a virtual environment of its own."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anthropic
import httpx
import psutil
import pytest

from tests.doubles.processes import REPOSITORY, base_environment
from tests.doubles.services import free_port, wait_for

pytestmark = pytest.mark.acceptance

INSTALL_AND_START_S = 400


def first_command() -> str:
    found = re.search(r"^python3 -m venv .*corral up$", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    assert found
    return found[0]


def clone(folder: Path) -> Path:
    """The files of the working tree that git tracks."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (source := REPOSITORY / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    return folder


@contextmanager
def running(command: str, folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a shell and a session of its own, ended whatever happens."""
    log = (folder / "up.log").open("wb")
    shell = ["bash", "-euo", "pipefail", "-c", command]
    process = subprocess.Popen(shell, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
        log.close()


def up_process(shell: subprocess.Popen[bytes]) -> psutil.Process | None:
    """The `corral up` that the shell started, or became."""
    family = [psutil.Process(shell.pid), *psutil.Process(shell.pid).children(recursive=True)]
    return next((p for p in family if p.cmdline()[-1:] == ["up"]), None)


@pytest.mark.timeout(INSTALL_AND_START_S + 60)
def test_the_first_command_answers_a_real_request_from_the_demo_model(tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "data"
    environment = base_environment(tmp_path) | {
        "CORRAL_PORT": str(port),
        "CORRAL_FLOWER_PORT": str(free_port()),
        "CORRAL_DATA_DIR": str(data),
        "CORRAL_THREADS": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
    }
    del environment["PYTHONPATH"]  # nothing but what the command installs
    folder = clone(tmp_path / "clone")
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert shell.poll() is None, (folder / "up.log").read_text()
        try:
            return httpx.get(f"{url}/ready", trust_env=False).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    with running(first_command(), folder, environment) as shell:
        wait_for(ready, "the demo model", INSTALL_AND_START_S)
        asked: list[anthropic.types.MessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
        with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
            message = client.messages.create(model="any", max_tokens=16, messages=asked)
        assert any(block.type == "text" and "Paris" in block.text for block in message.content)
        wait_for(lambda: "Ctrl-C" in (folder / "up.log").read_text(), "the welcome", 30)
        up = up_process(shell)
        assert up is not None
        parts = up.children(recursive=True)
        up.send_signal(signal.SIGINT)
        assert shell.wait(timeout=60) == 0
        assert not [part for part in parts if part.is_running()]
