"""What every bench does around its own work: it ends what it began, and says in a sentence what is wrong."""

import inspect
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import pytest

from infra.bench.command import DEFAULT_URL
from infra.cli.bench import BENCHES

pytestmark = pytest.mark.unit

LIMIT_S = 60
HEAD = """
import tempfile
import time
from infra.bench.command import JsonFile, run

"""
WAITS = """
def main() -> None:
    with tempfile.TemporaryDirectory(dir=FOLDER):
        print("began", flush=True)
        time.sleep(600)
"""
HELD = """
import os
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background lets its children ignore it
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
os.kill(os.getpid(), signal.SIGINT)
"""
WRITES = """
def main(json_file: JsonFile = None) -> None:
    json_file.write_text("figures")
"""
FAILS = """
def main(json_file: JsonFile = None, key: str = "") -> None:
    raise RuntimeError("a fault of the bench")
"""
ASKS = """
from infra.bench.command import DEFAULT_URL, Compare, Url
def main(url: Url = DEFAULT_URL, compare_urls: Compare = None, key: str = "") -> None:
    print(url, key or "none")
"""
OWN = {"CORRAL_PORT": "8123", "CORRAL_API_KEYS": "me:our-own-secret"}
OTHER = "http://192.0.2.1:9"


def bench(main: str, *arguments: str, settings: Mapping[str, str] = MappingProxyType({})) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"{HEAD}{main}\nraise SystemExit(run(main))", *arguments],
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_bench_that_is_told_to_end_leaves_no_folder_behind(tmp_path: Path) -> None:
    with bench(WAITS.replace("FOLDER", repr(str(tmp_path)))) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.terminate()
        assert process.wait(LIMIT_S) == 143
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    for path, problem in ((tmp_path / "none" / "file", "there is no folder"), (tmp_path, "is a folder")):
        with bench(FAILS, "--json", str(path)) as process:
            _, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 1
        assert said.startswith(f"error: --json {path}: {problem}")


def test_a_fault_of_the_bench_shows_no_variable(tmp_path: Path) -> None:
    with bench(FAILS, "--json", str(tmp_path / "file"), "--key", "secret-of-anna") as process:
        _, said = process.communicate(timeout=LIMIT_S)
    assert "a fault of the bench" in said
    assert "secret-of-anna" not in said


def test_a_ctrl_c_that_came_while_it_was_loaded_is_heard_without_a_stack_trace() -> None:
    held = HELD + WAITS.replace("FOLDER", repr("/nowhere"))
    with bench(held) as process:
        said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (130, ("", ""))


@pytest.mark.parametrize("address", [("--url", "http://127.0.0.1:1"), ("--corral=http://127.0.0.1:1",)])
def test_an_address_beside_start_is_refused(address: tuple[str, ...]) -> None:
    with bench(FAILS, "--start", *address) as process:
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert said == f"error: {address[0].partition('=')[0]}: asks who runs already; leave --start out\n"


@pytest.mark.parametrize("path", ["/dev/full", "/proc/none.json"])
def test_a_file_that_cannot_be_written_after_all_is_one_line(path: str) -> None:
    with bench(WRITES, "--json", path) as process:
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert said.startswith("error: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ((), "http://127.0.0.1:8123 our-own-secret"),
        (("--key", "given"), "http://127.0.0.1:8123 given"),
        (("--url", OTHER), f"{OTHER} none"),
        ((f"--corral={OTHER}", "--key", "given"), f"{OTHER} given"),
        (("--compare", OTHER), "http://127.0.0.1:8000 none"),
    ],
)
def test_it_asks_the_corral_of_its_settings_and_tells_no_other_address_its_key(
    arguments: tuple[str, ...], asked: str
) -> None:
    with bench(ASKS, *arguments, settings=OWN) as process:
        told, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, told.strip()) == (0, asked)


def test_its_help_does_not_show_a_key() -> None:
    with bench(ASKS, "--help", settings=OWN) as process:
        told, _ = process.communicate(timeout=LIMIT_S)
    assert "--key" in told
    assert OWN["CORRAL_API_KEYS"].partition(":")[2] not in told


def test_a_setting_that_is_wrong_is_named_before_anybody_is_asked() -> None:
    with bench(ASKS, settings={"CORRAL_PORT": "none"}) as process:
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert said.startswith("error: CORRAL_PORT: `port`: ")


@pytest.mark.parametrize("name", BENCHES)
def test_each_bench_that_asks_one_corral_asks_that_of_the_settings(name: str) -> None:
    module = import_module(f"infra.bench.{name}")
    main = module.main if hasattr(module, "main") else import_module(f"infra.bench.{name}.__main__").main
    asked = inspect.signature(main).parameters
    defaults = [one.default for one in asked.values()]
    assert ("url" in asked) == (name not in {"coalesce", "engine", "peers", "gather"})
    assert "corral" not in asked
    assert "url" not in asked or asked["url"].default == ("" if name == "agents" else DEFAULT_URL)
    assert defaults.count(DEFAULT_URL) == ("url" in asked and name != "agents")
