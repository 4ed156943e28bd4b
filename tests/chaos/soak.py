"""Load for a long time, and whether anything grows.

Owns: the samples of memory, keys, threads and file handles, and the verdict on their slopes after warm-up.
Never: a fault.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import linear_regression, mean

from tests.chaos.house import House
from tests.chaos.judge import Findings
from tests.chaos.load import Agent, standin_turns

SAMPLE_S = 5.0
WARM_UP_SHARE = 1 / 3
TURNS_EACH = 6
END_S = 120.0
# Over the time after warm-up, by its straight line. An allocator's own steps are of this size.
MOST_RISE = {"MiB": (0.03, 4.0), "threads": (0.0, 2.0), "handles": (0.0, 8.0), "keys": (0.10, 20.0)}
# They live for an hour or longer: what they add is known, and is no leak.
REMEMBERED = ("corral:why:", "corral:whys:", "corral:home:", "corral:turn:", "corral:latest:", "corral:attained:")


@dataclass(frozen=True)
class Sample:
    """Name of what was measured, with its unit as last word -> value, `at_s` after the start."""

    at_s: float
    values: dict[str, float]


@dataclass(frozen=True)
class Slope:
    """How one value went after warm-up: its mean, and the rise of its straight line over that time."""

    name: str
    mean: float
    rise: float

    @property
    def good(self) -> bool:
        share, least = MOST_RISE[self.name.split()[-1]]
        return self.rise <= max(least, share * self.mean)


def soak(house: House, minutes: float, agents: int, say: Callable[[str], None]) -> tuple[list[Slope], Findings]:
    """Load the house for so long. Returns each value's slope after warm-up, and what became of the requests."""
    findings, stopping = Findings(), threading.Event()
    team = [
        Agent(name, house, standin_turns(random.Random(name), name), TURNS_EACH, stopping, findings)
        for name in (f"soak-{number}" for number in range(agents))
    ]
    for agent in team:
        agent.start()
    try:
        samples = _samples(house, minutes * 60, findings, say)
    finally:
        stopping.set()
        for agent in team:
            agent.join(END_S)
    findings.lost += [f"{agent.name} hangs" for agent in team if agent.is_alive()]
    return slopes(samples), findings


def slopes(samples: Sequence[Sample]) -> list[Slope]:
    """The slope of each value, warm-up left out. Raises StatisticsError for less than two samples."""
    late = [sample for sample in samples if sample.at_s >= samples[-1].at_s * WARM_UP_SHARE]
    times = [sample.at_s for sample in late]
    found = []
    for name in late[-1].values:
        values = [sample.values[name] for sample in late]
        rise = linear_regression(times, values).slope * (times[-1] - times[0])
        found.append(Slope(name, mean(values), rise))
    return found


def _samples(house: House, seconds: float, findings: Findings, say: Callable[[str], None]) -> list[Sample]:
    started_s, samples = time.monotonic(), []
    while (at_s := time.monotonic() - started_s) < seconds:
        samples.append(Sample(at_s, _values(house)))
        findings.askings.clear()  # nothing is looked up in them here, and this process shall not grow either
        say(f"{at_s:.0f} s " + ", ".join(f"{name} {value:.1f}" for name, value in samples[-1].values.items()))
        time.sleep(SAMPLE_S)
    return samples


def _values(house: House) -> dict[str, float]:
    values: dict[str, float] = {}
    for part, (threads, handles, rss_bytes) in house.census().items():
        values |= {f"{part} threads": threads, f"{part} handles": handles}
        if part != "broker":  # its resident memory holds what is remembered; the next lines tell that apart
            values[f"{part} MiB"] = rss_bytes / 2**20
    return values | _broker_values(house)


def _broker_values(house: House) -> dict[str, float]:
    names = house.keys()
    remembered = [name for name in names if name.startswith(REMEMBERED)]
    pipeline = house.redis.pipeline(transaction=False)
    for name in remembered:
        pipeline.memory_usage(name)
    known_bytes = sum(size or 0 for size in pipeline.execute())
    used_bytes = int(house.redis.info("memory")["used_memory"])
    return {
        "broker MiB": (used_bytes - known_bytes) / 2**20,
        "work keys": float(len(names) - len(remembered)),
    }
