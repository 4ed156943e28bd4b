"""Rules of the house that no other tool holds."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import api
import infra
import scheduler
import workers
from infra.config import Settings

pytestmark = pytest.mark.contracts

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("api", "scheduler", "workers", "infra")
MODULES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
MOST_MODULE_LINES = 300
MOST_FUNCTION_LINES = 40
TOP_LEVEL = {"pyproject.toml", "README.md", "api", "workers", "scheduler", "infra", "tests"}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_import_rules_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


def test_the_packages_are_ours() -> None:
    for package in (api, infra, scheduler, workers):
        assert Path(str(package.__file__)).is_relative_to(ROOT)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_owns_and_stays_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_MODULE_LINES
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), "a module begins with what it owns and never does"
    long = [f.name for f in functions(path) if (f.end_lineno or 0) - f.lineno + 1 > MOST_FUNCTION_LINES]
    assert not long


def test_every_lua_file_heads_with_its_contract() -> None:
    for path in (ROOT / "scheduler" / "lua").glob("*.lua"):
        head = path.read_text()
        assert all(word in head for word in ("-- KEYS", "-- ARGV", "-- Returns")), path.name


def test_every_dependency_is_used_and_every_package_file_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {re.split(r"[<>=;\[ ]", line)[0] for line in project["project"]["dependencies"]}
    # uvicorn loads the first by itself when it is there, kombu the second without requiring it.
    used = {"uvloop", "packaging"}
    provided_by = packages_distributions()
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            providers = [provider for name in names for provider in provided_by.get(name.split(".")[0], ())]
            used.update(provider.lower().replace("_", "-") for provider in providers)
    assert needed - used == set()
    for package, patterns in project["tool"]["setuptools"]["package-data"].items():
        assert [pattern for pattern in patterns if not list((ROOT / package).glob(pattern))] == []


def test_every_setting_has_a_description_and_stands_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert f"`{name}`" in readme, f"README.md does not list the setting {name}"


def test_the_readme_gives_no_secret_as_an_argument_where_all_of_the_machine_could_read_it() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert [line for line in lines if re.search(r"--(password|key|api-key)\b", line)] == []


def test_the_top_level_holds_nothing_else() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tops = {line.split("/")[0] for line in tracked.splitlines()}
    assert {top for top in tops if not top.startswith(".")} <= TOP_LEVEL


def test_the_gate_runs_the_readme_command() -> None:
    commands = [line for line in (ROOT / "README.md").read_text().splitlines() if line.endswith(" -m tests")]
    assert len(commands) == 1


def test_every_module_of_tests_is_of_a_suite() -> None:
    """One that is of none is run by no command that names a suite."""
    suite = re.compile(r"pytest\.mark\.(unit|integration|acceptance|contracts)\b")
    modules = sorted((ROOT / "tests").rglob("test_*.py"))
    assert modules
    assert [path.name for path in modules if not suite.search(path.read_text())] == []
