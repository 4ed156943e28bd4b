"""What a test needs from the machine: free ports, bounded waits, and one answer to "it is not here".

Owns: the rule that a missing service is skipped on a laptop and fails where everything is required.
Never: starts a process.
"""

import os
import socket
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

import pytest

# Read once at import: the fixtures take these variables away from the tests themselves.
REQUIRE_ALL = os.environ.get("CI") == "true" or os.environ.get("CORRAL_TEST_REQUIRE_ALL") == "1"

POLL_S = 0.02

T = TypeVar("T")


def missing(what: str, remedy: str) -> NoReturn:
    """Skip the test, or fail it where CI=true or CORRAL_TEST_REQUIRE_ALL=1 asks for everything."""
    sentence = f"{what} is not here: {remedy}"
    if REQUIRE_ALL:
        pytest.fail(sentence)
    pytest.skip(sentence)


def free_port() -> int:
    """A loopback TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], T | None], what: str, timeout_s: float = 20) -> T:
    """The first truthy answer of `condition`. Raises AssertionError that names `what` after `timeout_s`.

    For states that only an outside process can show; a test that can wait on an event itself does that.
    """
    give_up = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > give_up:
            raise AssertionError(f"waited {timeout_s:g} s in vain for {what}; last seen: {answer!r}")
        time.sleep(POLL_S)
