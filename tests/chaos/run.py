"""One run: agents at work, faults at random, and what came of it.

Owns: the order of a run, how long recovery took, and what must not be left at the end.
Never: a fault's or an agent's own doing.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.chaos.faults import WHILE_IT_LASTS, Fault, do
from tests.chaos.house import House
from tests.chaos.judge import Asking, Findings
from tests.chaos.leftovers import left_over
from tests.chaos.load import Agent, Turn, standin_turns
from tests.doubles.broker import Broker

PAUSE_S = (0.3, 2.0)
TURNS_EACH = 4
END_S = 330.0
POLL_S = 0.1
ON_ITS_WAY_S = 0.5
ALONE = 0.75  # of the faults wait until all is as before; each other one meets what the one before it left
CALM_S = 30.0
ATTEMPTS = 3  # an answer has (0019)
AFTERMATH_S = 5.0  # a fault can cost an attempt for as long after it: one lifetime of a lease
ASKED_AGAIN = "a tool call may have followed"  # the one end that cannot be told from a lost call (0019)

H = TypeVar("H", bound=House)
Say = Callable[[str], None]
Turns = Callable[[random.Random, str], Iterator[Turn]]


@dataclass(frozen=True)
class Plan:
    """What a run is made of; the same `seed` gives the same faults in the same order."""

    kinds: Sequence[str]
    faults: int
    seconds: float
    seed: int
    agents: int = 6


@dataclass
class Report:
    """What a run has shown."""

    findings: Findings = field(default_factory=Findings)
    faults: list[Fault] = field(default_factory=list)
    alone: list[Fault] = field(default_factory=list)  # those of them that no other one was near

    def recovery_s(self, kind: str) -> list[float]:
        """For each fault of this kind that was alone: until everybody who was waiting then had heard something."""
        return [recovery_s(fault, self.findings.askings) for fault in self.alone if fault.kind == kind]


@contextmanager
def house_of(kind: type[H], folder: Path, *, hosts: bool = False, **options: Any) -> Iterator[H]:
    """A house of that kind and its broker in `folder`; `options` are the house's."""
    for name in ("broker", "cluster"):
        (folder / name).mkdir(parents=True)
    with (
        Broker(folder / "broker", keeps=True, for_all=hosts) as broker,
        kind(folder / "cluster", broker, hosts=hosts, **options) as house,
    ):
        yield house


@contextmanager
def house_in(folder: Path, **options: Any) -> Iterator[House]:
    """A house and its broker in `folder`."""
    with house_of(House, folder, **options) as house:
        yield house


def run(house: House, plan: Plan, say: Say, turns: Turns = standin_turns) -> Report:
    """Put the plan's load and faults on a house that serves, and judge."""
    report, stopping = Report(), threading.Event()
    census = house.census()
    agents = [
        Agent(name, house, turns(random.Random(f"{plan.seed} {name}"), name), TURNS_EACH, stopping, report.findings)
        for name in (f"agent-{plan.seed}-{number}" for number in range(plan.agents))
    ]
    for agent in agents:
        agent.start()
    try:
        _do_faults(house, plan, agents, report, say)
    finally:
        stopping.set()
        for agent in agents:
            agent.join(END_S)
    report.findings.lost += [f"{agent.name} hangs" for agent in agents if agent.is_alive()]
    report.findings.lost += unexplained(report.findings.askings, report.faults)
    report.findings.lost += told_too_soon(report.findings.askings, report.faults)
    house.wait_whole()
    report.findings.left += left_over(house, census) + house.trouble
    return report


def unexplained(askings: Sequence[Asking], faults: Sequence[Fault]) -> list[str]:
    """Streams that broke although the API that told them lived."""

    def explained(asking: Asking) -> bool:
        kills = [fault for fault in faults if (fault.kind, fault.what) == ("kill-api", asking.api)]
        return any(asking.began_s <= kill.over_s and kill.at_s <= asking.ended_s for kill in kills)

    broken = [asking for asking in askings if asking.outcome == "broken" and not explained(asking)]
    return [f"{asking.who}: broke off by itself: {asking.detail}" for asking in broken]


def told_too_soon(askings: Sequence[Asking], faults: Sequence[Fault]) -> list[str]:
    """Answers that were told as lost though less went wrong meanwhile than an answer has attempts."""

    def hits(asking: Asking) -> int:
        """How many faults can have cost it one."""
        return sum(fault.at_s <= asking.ended_s and asking.began_s <= fault.over_s + AFTERMATH_S for fault in faults)

    told = [asking for asking in askings if asking.outcome == "told" and ASKED_AGAIN not in asking.detail]
    few = [(asking, count) for asking in told if (count := hits(asking)) < ATTEMPTS]
    return [f"{asking.who}: told as lost after {count} faults: {asking.detail}" for asking, count in few]


def recovery_s(fault: Fault, askings: Sequence[Asking]) -> float:
    """For how long a fault kept somebody waiting, in seconds; 0.0: nobody was kept."""
    from_s = fault.at_s if fault.kind in WHILE_IT_LASTS else fault.over_s
    ends = [_silence_end(asking, from_s) for asking in askings]
    return max((end_s - from_s for end_s in ends), default=0.0)


def _silence_end(asking: Asking, at_s: float) -> float:
    """The end of the silence in which an asking was at this time; that time itself when there was none."""
    heard = [asking.began_s, *asking.heard_s, asking.ended_s]
    for before_s, after_s in itertools.pairwise(heard):
        # What was on its way is still heard.
        if before_s <= at_s + ON_ITS_WAY_S and after_s > at_s and after_s - before_s > ON_ITS_WAY_S:
            return after_s
    return at_s


def _do_faults(house: House, plan: Plan, agents: Sequence[Agent], report: Report, say: Say) -> None:
    dice, calm = random.Random(plan.seed), True
    until_s = time.monotonic() + plan.seconds
    kinds = _shuffled(plan.kinds, dice)
    for number in range(1, plan.faults + 1):
        time.sleep(dice.uniform(*PAUSE_S))
        if time.monotonic() > until_s:
            return
        fault = do(next(kinds), house, dice)
        report.faults.append(fault)
        was_calm, calm = calm, dice.random() < ALONE
        house.wait_whole()
        whole_s = time.monotonic() - fault.over_s
        if calm:
            report.alone += [fault] if was_calm else []
            _wait_heard(agents, fault.over_s)
        findings = report.findings
        say(
            f"{number} {fault.kind} ({fault.what}) {fault.over_s - fault.at_s:.1f} s, whole after "
            f"{whole_s:.1f} s; answered {findings.answered}, wrong {len(findings.wrong)}, "
            f"lost {len(findings.lost)}, told {findings.count('told')}, broken {findings.count('broken')}, "
            f"refused {findings.count('refused')}"
        )


def _wait_heard(agents: Sequence[Agent], since_s: float) -> None:
    """Until each agent has heard something since; one that hears nothing is found at the end of the run."""
    until_s = time.monotonic() + CALM_S
    while time.monotonic() < until_s and any(agent.heard_s < since_s + ON_ITS_WAY_S for agent in agents):
        time.sleep(POLL_S)


def _shuffled(kinds: Sequence[str], dice: random.Random) -> Iterator[str]:
    """Every kind once in each round, in an order of its own."""
    while True:
        yield from dice.sample(list(kinds), len(kinds))
