"""What an answer's first and last delta tell, by the names of the log line.

Owns: these names, for whoever says the figures of a request: its log line (from which page, status and metrics have
theirs) and the spans of its trace. Times are whole milliseconds, rounded where they were measured.
Never: adds, rounds or drops one.
"""

from typing import Any

from scheduler.contract import Finished, Started


def of_started(started: Started) -> dict[str, Any]:
    """What is known once the engine has the prompt."""
    return {
        "attempt": started.attempt,
        "slot": started.slot,
        "queue_ms": started.queue_ms,
        "prompt_tokens": started.prompt_tokens,
        "cached_tokens": started.cached_tokens,
        "source": started.source.value,
        "restored_tokens": started.restored_tokens,
        "restore_ms": started.restore_ms,
    }


def of_finished(finished: Finished) -> dict[str, Any]:
    """What is known at the end. Its tokens are those of the client's usage: an answer that was made again may have
    found another cache than it began with."""
    return {
        "prompt_tokens": finished.prompt_tokens,
        "cached_tokens": finished.cached_tokens,
        "prefill_ms": finished.prefill_ms,
        "decode_ms": finished.decode_ms,
        "output_tokens": finished.output_tokens,
        "stop_reason": finished.stop_reason.value,
        "model_hash": finished.model_hash,
        "engine_bytes": finished.engine_bytes,
    }
