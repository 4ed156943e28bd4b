"""What Corral counts and times, by its Prometheus names.

Owns: names, labels, buckets and help of every counter and histogram that a process keeps of its own work.
Never: serves them (`api.metrics`, `workers.metrics`), gauges of the cluster (a collector makes these when it is asked).

Labels are few and bounded: workers, served models, kinds and levels; never an agent, a key or a request. Beside a
process that does not ask for them they cost nothing.
"""

import os

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, values

FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # where several API processes keep their counters, for whichever is asked
KINDS = ("counter", "histogram")  # a file of each process for each
if FOLDER in os.environ and (name := os.environ.get("CORRAL_API_NAME")):
    # Not the number of the process: one that comes back counts on in its files, or each death would leave two.
    values.ValueClass = values.MultiProcessValue(lambda: name)  # type: ignore[no-untyped-call]

# From a cached first token to a long answer behind a long queue, in seconds.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
WHERE = ("worker", "model", "kind")

disable_created_metrics()  # type: ignore[no-untyped-call]  # else each series has a second one: when it began
API, WORKER = CollectorRegistry(), CollectorRegistry()


def _counted(registry: CollectorRegistry, name: str, words: str, *labels: str) -> Counter:
    return Counter(f"corral_{name}", words, labels, registry=registry)


def _timed(registry: CollectorRegistry, name: str, words: str, *labels: str) -> Histogram:
    return Histogram(f"corral_{name}_seconds", words, labels, buckets=SECONDS, registry=registry)


REQUESTS = _counted(API, "requests", "Requests that have ended, by outcome.", *WHERE, "level", "outcome")
REFUSALS = _counted(API, "refusals", "Requests that were refused or failed, by the code of the error.", "reason")
QUEUE = _timed(API, "queue", "Wait in the line before a slot was free.", "worker", "level")
FIRST_TOKEN = _timed(API, "first_token", "From a request's arrival to its first token, at the gateway.", *WHERE)
PREFILL = _timed(API, "prefill", "The engine's prefill of what was not cached.", *WHERE)
DECODE = _timed(API, "decode", "The engine's decode.", *WHERE)
WHOLE = _timed(API, "request", "From a request's arrival to its end.", *WHERE)
TOKENS = _counted(API, "tokens", "Tokens of prompts, of these found in a cache, and of answers.", *WHERE, "part")
SOURCES = _counted(API, "cache_sources", "Answers by where their cache came from.", "worker", "source")
RETRIES = _counted(API, "retries", "Further attempts at an answer that lost its worker or engine.", "worker")
CONTINUED = _counted(API, "continued_answers", "Answers that went on after a part had been told.", "worker")
PLACEMENTS = _counted(
    API, "placements", "Requests by the worker that took them and why it was that one.", "worker", "reason"
)
COALESCED = _counted(API, "coalesced", "Requests that shared another's answer.")
IN_VAIN = _counted(API, "waited_in_vain", "Requests that were let in and told so after their whole wait.")
PROMISES_KEPT = _counted(API, "promises_kept", "Refused requests that came back and found the room promised to them.")
MOVED = _counted(API, "moved", "Jobs that were moved to another worker while they waited.")

SAVES = _timed(WORKER, "cache_save", "Saving the cache of one slot to the store.")
RESTORES = _timed(WORKER, "cache_restore", "Restoring the cache of one slot from the store.")
STORE_FAILURES = _counted(WORKER, "cache_store_failures", "Saves and restores that failed.")
EVICTIONS = _counted(WORKER, "cache_evictions", "Slots that one conversation lost to another.")
DRAFTED = _counted(WORKER, "drafted_tokens", "Tokens that speculative decoding proposed.")
ACCEPTED = _counted(WORKER, "accepted_draft_tokens", "Those of them that were what the model said.")
ENGINE_FAILURES = _counted(WORKER, "engine_failures", "Lives of the engine that ended by themselves.")
ATTEMPTS = _counted(WORKER, "attempts", "Jobs that this worker has worked on, by how that ended.", "outcome")
