"""Logging never ends what it tells of."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

PROGRAM = """
import logging, structlog
from infra.config import load
from infra.observability import logs
logs.configure(load({}).settings, "test")
structlog.get_logger().warning("one")
logging.getLogger("foreign").warning("two")
"""


def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123  # a device, not a path of ours
        run = subprocess.run([sys.executable, "-c", PROGRAM], stdout=full, stderr=subprocess.PIPE, check=False)
    assert b"Traceback" not in run.stderr


def test_lines_are_written_where_they_can_be() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert [word in run.stdout for word in ('"one"', '"two"')] == [True, True]
