"""How long placement takes, at 16 workers and at 1,000.

    python -m tests.unit.scheduler.policy.placement_time

Owns: the measurement and its figures.
Never: judges them; a clock on a shared machine is no test.
"""

import sys
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from scheduler.contract import ClusterView
from scheduler.policy.fleet import fleet
from scheduler.policy.placement import Home, candidates, choose
from tests.unit.scheduler.policy.sites import NOW_MS, busy, known, worker

SIZES = (16, 1000)
PLACEMENTS = 200
QUEUED = 8


@dataclass(frozen=True, slots=True)
class Times:
    """Medians in ms: one placement, and what is reckoned once for each snapshot."""

    workers: int
    placement_ms: float
    snapshot_ms: float


def measure(count: int, placements: int = PLACEMENTS) -> Times:
    """`placements` jobs, every second with a home, on `count` busy workers of two window sizes."""
    workers = tuple(worker(f"w{n}", slots=4, homes=n % 5, window=(32_000, 128_000)[n % 2]) for n in range(count))
    view = ClusterView(now_ms=NOW_MS, workers=workers)
    loads = {made.info.name: busy(4, QUEUED) for made in workers}
    snapshots, single = [], []
    for number in range(placements):
        if number % 50 == 0:
            began_s = perf_counter()
            sites = fleet(view)
            candidates(sites, known(), 1.25)  # what is reckoned only when it is first needed
            snapshots.append((perf_counter() - began_s) * 1000)
        home = Home(f"w{number}", 900, NOW_MS) if number % 2 and number < count else None
        job = known(f"conversation-{number}", prompt_tokens=1000, home=home)
        began_s = perf_counter()
        choose(candidates(sites, job, 1.25), loads, job, 1000, 64)
        single.append((perf_counter() - began_s) * 1000)
    return Times(count, median(single), median(snapshots))


def main() -> None:
    for size in SIZES:
        times = measure(size)
        sys.stdout.write(
            f"{times.workers:5} workers: {times.placement_ms:.3f} ms a placement, "
            f"{times.snapshot_ms:.2f} ms for each snapshot of the cluster\n"
        )


if __name__ == "__main__":
    main()
