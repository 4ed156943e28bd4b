"""Another attempt at an answer that was lost with its engine or worker.

Owns: how often an answer is tried, an attempt's id in its trace, and the arguments of the step that puts its job back
(`lua/requeue.lua`), which a worker takes for itself and `recovery` for one that died.
Never: says who has died, or how the answer goes on (`policy.resuming`).
"""

from infra import keys

MOST_ATTEMPTS = 3
WAITS_AT_LEAST_MS = 600_000  # an engine may take so long to load a model
LIVES_ON_MS = 60_000  # a record, after its wait limit


def attempt_span(claim: str) -> str:
    """The id of an attempt's span, of the token of its claim: who finds the worker dead tells it in its place."""
    return claim[:16]


def requeue_keys(job_id: str, worker: str) -> list[str]:
    return [keys.job(job_id), keys.line(worker), keys.running(worker), keys.lease(worker), keys.stream(job_id)]


def requeue_arguments(job_id: str, incarnation: str, *, alive: bool, spared: bool = False) -> list[str | int]:
    """`alive`: the incarnation itself gives the job up; else it must be dead. `spared`: this attempt does not count."""
    limits = [keys.LEVEL_WEIGHT, MOST_ATTEMPTS, WAITS_AT_LEAST_MS, LIVES_ON_MS]
    return [job_id, incarnation, *limits, "1" if alive else "", "1" if spared else ""]
