"""The chaos suite with each worker on a host of its own. By command only: what it shows beyond a cut is the silence."""

import subprocess

import pytest

from tests.chaos.hosts import why_not
from tests.doubles.processes import REPOSITORY, python

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_worker_whose_cable_is_pulled_costs_no_answer() -> None:
    if reason := why_not():
        pytest.skip(f"no network namespaces: {reason}")
    command = [*python("-m", "tests.chaos"), "--hosts", "--kinds", "cut-worker", "--faults", "3", "--seed", "3"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "the cable of" in done.stdout
