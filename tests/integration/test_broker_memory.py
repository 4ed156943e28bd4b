"""The house's broker keeps the memory that its scripts use again and again."""

import platform
import time
from pathlib import Path

import pytest
import redis

from infra.cli import broker
from tests.doubles.processes import Child, base_environment
from tests.doubles.services import free_port

pytestmark = pytest.mark.integration
BODY = b"x" * 80_000
TIMES = 500


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another library keeps its memory otherwise")
def test_a_body_that_goes_through_a_script_costs_no_page_faults(tmp_path: Path) -> None:
    port = free_port()
    command = broker.command(tmp_path / "broker", "127.0.0.1", port, "")
    environment = base_environment(tmp_path) | broker.MEMORY
    with Child(command, tmp_path / "broker.log", environment, tmp_path) as child, redis.Redis(port=port) as client:
        broker.wait_until_answers(broker.url("127.0.0.1", port, ""), lambda: None, time.sleep)
        # Its file is another matter: what waits for a slow disk is fresh memory, and a rewrite forks.
        client.config_set("appendonly", "no")
        script = client.register_script("redis.call('SET', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])")
        before = 0
        for number in range(2 * TIMES):
            if number == TIMES:
                before = page_faults(child)
            assert script(["body"], [BODY]) == BODY
        assert page_faults(child) - before < TIMES


def page_faults(child: Child) -> int:
    """How many pages it has had to fetch so far."""
    fields = Path(f"/proc/{child.process.pid}/stat").read_text().rpartition(") ")[2].split()
    return int(fields[7])
