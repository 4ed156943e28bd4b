"""Load for a long time, and whether anything grows.

Owns: the load that is put on for that, the samples of memory, objects, keys, threads and file handles, and the verdict
on their slopes after warm-up.
Never: a fault.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import linear_regression, mean

from tests.chaos.counted_house import CountedHouse
from tests.chaos.crowd import pass_through
from tests.chaos.judge import Findings
from tests.chaos.load import Agent, standin_turns
from tests.chaos.visitor import Visitor

SAMPLE_S = 5.0
WARM_UP_SHARE = 1 / 3
TURNS_EACH = 6
END_S = 120.0
# Over the time after warm-up, by its straight line: a share of the mean, or so much. An allocator's own steps are of
# this size, and so are the books that have a bound: Celery's last thousand tasks, the last 4,096 prompts counted and
# conversations that lost their slot. Of half an hour's answers one object each would be ten times as many.
MOST_RISE = {
    "MiB": (0.03, 4.0),
    "objects": (0.0, 500.0),
    "blocks": (0.015, 0.0),
    "threads": (0.0, 2.0),
    "handles": (0.0, 8.0),
    "keys": (0.10, 20.0),
    "broker MiB": (0.0, 1.0),  # a key that is remembered takes a little more than it says itself
}
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
        share, least = MOST_RISE.get(self.name) or MOST_RISE[self.name.split()[-1]]
        return self.rise <= max(least, share * self.mean)


@contextmanager
def at_work(house: CountedHouse, agents: int, paces: tuple[int, int]) -> Iterator[Findings]:
    """Inside the block so many agents work, each answer at a pace between these (tokens/s), and a visitor comes and
    goes; after it they have ended. Gives what becomes of their requests."""
    findings, stopping = Findings(), threading.Event()
    turns = partial(standin_turns, paces=paces)
    team: list[threading.Thread] = [
        Agent(name, house, turns(random.Random(name), name), TURNS_EACH, stopping, findings)
        for name in (f"soak-{number}" for number in range(agents))
    ]
    team.append(Visitor(house, stopping))
    for one in team:
        one.start()
    try:
        yield findings
    finally:
        stopping.set()
        for one in team:
            one.join(END_S)
    findings.lost += [f"{one.name} hangs" for one in team if one.is_alive()]


def soak(house: CountedHouse, minutes: float, agents: int, say: Callable[[str], None]) -> tuple[list[Slope], Findings]:
    """Load the house for so long. Returns each value's slope after warm-up, and what became of the requests.

    A crowd comes first: a book that fills for two hours would look like a leak for as long.
    """
    pass_through(house, say)
    with at_work(house, agents, paces=(10, 30)) as findings:
        samples = _samples(house, minutes * 60, findings, say)
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


def standing(house: CountedHouse) -> dict[str, float]:
    """What the parts hold now, the name's last word being the unit."""
    values: dict[str, float] = {}
    for part, (threads, handles, _) in house.census().items():
        values |= {f"{part} threads": threads, f"{part} handles": handles}
    for part, (objects, blocks) in house.counts().items():
        values |= {f"{part} objects": objects, f"{part} blocks": blocks}
    return values


def _samples(house: CountedHouse, seconds: float, findings: Findings, say: Callable[[str], None]) -> list[Sample]:
    started_s, samples = time.monotonic(), []
    while (at_s := time.monotonic() - started_s) < seconds:
        samples.append(Sample(at_s, standing(house) | _memory(house) | _broker_values(house)))
        findings.askings.clear()  # nothing is looked up in them here, and this process shall not grow either
        say(f"{at_s:.0f} s " + ", ".join(f"{name} {value:.1f}" for name, value in samples[-1].values.items()))
        time.sleep(SAMPLE_S)
    return samples


def _memory(house: CountedHouse) -> dict[str, float]:
    """The broker's is told by itself: its resident memory holds what is remembered, too."""
    return {f"{part} MiB": rss / 2**20 for part, (_, _, rss) in house.census().items() if part != "broker"}


def _broker_values(house: CountedHouse) -> dict[str, float]:
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
