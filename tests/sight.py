"""What a request's log line and its metrics cost the API, by command: python -m tests.sight

Owns: the fields of a usual request, and timing what is done with them once it has ended.
Never: a whole request; `infra.bench.overhead --only processor` tells that one's processor time.
"""

import sys
from pathlib import Path
from timeit import repeat
from typing import Any

import structlog

from api import metrics
from infra.config import Settings
from infra.observability import logs

REQUESTS = 20_000
FIELDS: dict[str, Any] = {
    "request_id": "req_" + "a" * 32,
    "outcome": "done",
    "key": "local",
    "agent": "an-agent",
    "conversation": "c" * 32,
    "kind": "main",
    "level": 5,
    "model": "a-model",
    "job": "j" * 32,
    "worker": "w1",
    "shared": False,
    "eta_ms": 0,
    "first_ms": 57,
    "attempt": 1,
    "retries": 0,
    "continued": False,
    "slot": 3,
    "queue_ms": 0,
    "prompt_tokens": 22_350,
    "cached_tokens": 22_330,
    "source": "own",
    "restored_tokens": 0,
    "restore_ms": 0,
    "normalised_tokens": 20,
    "prefill_ms": 3,
    "decode_ms": 20,
    "output_tokens": 8,
    "stop_reason": "end_turn",
    "model_hash": "h" * 16,
    "engine_bytes": 123_456_789,
    "miss": "none",
    "reuse_expected_tokens": 22_330,
    "lost_tokens": 0,
    "took_ms": 80,
}


def main() -> None:
    """Microseconds of each, the least of five rounds."""
    with Path("/dev/null").open("w") as nowhere:
        sys.stdout = nowhere
        logs.configure(Settings(log_format="json"), "api")
        log = structlog.get_logger("request")
        line = _least_us(lambda: log.info("request", **FIELDS))
        counted = _least_us(lambda: metrics.count(FIELDS, lambda _: True))
        sys.stdout = sys.__stdout__
    print(f"log line {line:.1f} us, metrics {counted:.1f} us a request")


def _least_us(work: Any) -> float:
    return min(repeat(work, number=REQUESTS, repeat=5)) / REQUESTS * 1e6


if __name__ == "__main__":
    main()
