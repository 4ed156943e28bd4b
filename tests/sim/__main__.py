"""`python -m tests.sim` prints how the policies compare; `--help` says what can be chosen.

Owns: the tables. The same arguments print the same figures, but for this machine's own (placement, requests a second).
Never: judges; `test_policies` does.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import chain

from tests.sim.baselines import BASELINES
from tests.sim.cluster import Fleet, Making, simulate
from tests.sim.figures import Figures
from tests.sim.ours import Ours
from tests.sim.prediction import errors
from tests.sim.workloads import WORKLOADS, Shape

LOADS = (0.5, 0.9, 1.3)
POLICIES: tuple[Making, ...] = (*BASELINES, Ours)
MANY = Fleet(workers=1000)
MANY_SHAPE = Shape(prompts=3, calls=2.0, burst=4)
HEAD = "policy          mean    p50    p99    wall  prefilled  fairness  placement  requests/s"
UNITS = "                  s      s      s       s   M tokens      Jain         ms"


def row(figures: Figures) -> str:
    """One line of the table."""
    return (
        f"{figures.policy:<13}{figures.mean_s:7.2f}{figures.quantile_s(0.5):7.2f}{figures.quantile_s(0.99):7.1f}"
        f"{figures.wall_s:8.0f}{figures.prefilled_tokens / 1e6:11.1f}{figures.fairness:10.2f}"
        f"{figures.placement_ms:11.3f}{figures.requests / figures.simulated_in_s:12.0f}"
    )


def table(loads: Sequence[float], names: Sequence[str], fleet: Fleet, seed: int) -> Iterator[str]:
    """Every policy under each workload and load."""
    for workload in WORKLOADS:
        if workload.name not in names:
            continue
        for load in loads:
            found = [simulate(policy, workload, load, fleet, seed) for policy in POLICIES]
            yield ""
            yield f"{workload.words}, load {load:g}: {found[0].agents} agents, {found[0].requests} requests"
            yield HEAD
            yield UNITS
            yield from map(row, found)


def predictions(loads: Sequence[float], names: Sequence[str], fleet: Fleet, seed: int) -> Iterator[str]:
    """How far the foretold waits are off, beside an oracle that knows how the lengths of answers are distributed."""
    yield ""
    yield "error of the foretold wait, s     waits  ours p50  oracle p50  ratio  ours p90  oracle p90"
    for workload in WORKLOADS:
        for load in (load for load in loads if workload.name in names and load > LOADS[0]):
            found = errors(workload, load, fleet, seed)
            yield (
                f"{workload.name + f', load {load:g}':<32}{found.waits:7}{found.ours_median_s:10.2f}"
                f"{found.oracle_median_s:12.2f}{found.ratio:7.2f}{found.ours_p90_s:10.1f}{found.oracle_p90_s:12.1f}"
            )


def many(names: Sequence[str], seed: int) -> Iterator[str]:
    """A cluster of a thousand workers with as many agents as make 0.9 of it, under our policy."""
    for workload in (workload for workload in WORKLOADS if workload.name in names):
        found = simulate(Ours, workload, LOADS[1], MANY, seed, MANY_SHAPE)
        yield ""
        yield f"{workload.words}, 1000 workers: {found.agents} agents, {found.requests} requests"
        yield HEAD
        yield UNITS
        yield row(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Scheduling policies in virtual time.")
    parser.add_argument("--workers", type=int, default=8, help="workers of the cluster (8)")
    parser.add_argument("--slots", type=int, default=4, help="slots of each (4)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, another day (1)")
    parser.add_argument("--load", type=float, action="append", help="of the capacity; may be given again (0.5 0.9 1.3)")
    parser.add_argument("--workload", choices=[w.name for w in WORKLOADS], action="append", help="one only; all")
    parser.add_argument("--store", action="store_true", help="engines save caches and restore them")
    parser.add_argument("--many", action="store_true", help="a thousand workers instead")
    chosen = parser.parse_args(arguments)
    fleet, loads = Fleet(chosen.workers, chosen.slots, store=chosen.store), tuple(chosen.load or LOADS)
    names = chosen.workload or [workload.name for workload in WORKLOADS]
    print(f"{fleet.workers} workers of {fleet.slots} slots, seed {chosen.seed}; mean, p50, p99: time to first token")
    if chosen.many:
        lines = many(names, chosen.seed)
    else:
        lines = chain(table(loads, names, fleet, chosen.seed), predictions(loads, names, fleet, chosen.seed))
    for line in lines:
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
