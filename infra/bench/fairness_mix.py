"""The agents of the fairness bench: unequal in everything but the share that is due to them.

Owns: sizes, pauses and numbers of lines, such that each agent alone would take the same part of the cluster.
Never: asks anybody.
"""

from dataclasses import dataclass
from math import ceil

from infra.bench.lines import Line
from infra.bench.shares import Pace

PREFILL_SHARE = 1 / 3  # of an answer's time
REVIEW, BACKGROUND = "review", "background"
REVIEW_PAUSES = 3  # the review agent is idle for so many times its answer


@dataclass(frozen=True, slots=True)
class Sort:
    """A sort of agent: how many lines it has, and how long one answer takes, in units."""

    name: str
    lines: int
    units: float


# First come, first served gives the second and third about three times what the first gets.
SORTS = (Sort("short", 1, 0.2), Sort("twin", 2, 0.6), Sort("long", 1, 1.2))
PEER = SORTS[1]  # review and background ask the same as this sort


@dataclass(frozen=True, slots=True)
class Mix:
    """`agents` agents that together want `overload` times what `slots` slots give; `unit_s` scales their answers."""

    agents: int
    slots: int
    overload: float
    unit_s: float
    pace: Pace

    @property
    def lines(self) -> list[Line]:
        """All lines of the equal agents."""
        return [line for number in range(self.agents) for line in self._agent(number)]

    @property
    def peers(self) -> list[str]:
        """The agents at level 5 that ask the same as the review agent."""
        return [self._name(number) for number in range(self.agents) if self._sort(number) is PEER]

    @property
    def extras(self) -> list[Line]:
        """A review agent at level 0 that seldom asks, and a background agent at level 9 that always does."""
        answer_s = PEER.units * self.unit_s
        return [
            self.line(REVIEW, 0, answer_s, REVIEW_PAUSES * answer_s, level=0),
            self.line(BACKGROUND, 0, answer_s, 0.0, level=9),
        ]

    def line(self, agent: str, number: int, answer_s: float, pause_s: float, level: int = 5) -> Line:
        """A line whose answers take `answer_s` seconds of a slot."""
        return Line(
            agent,
            f"line{number}",
            fresh_tokens=max(1, round(answer_s * PREFILL_SHARE * self.pace.prefill)),
            output_tokens=max(1, round(answer_s * (1 - PREFILL_SHARE) * self.pace.decode)),
            pause_s=pause_s,
            level=level,
        )

    def _agent(self, number: int) -> list[Line]:
        sort = self._sort(number)
        wanted_slots = self.overload * self.slots / self.agents
        lines = max(sort.lines, ceil(wanted_slots))
        answer_s = sort.units * self.unit_s
        pause_s = answer_s * (lines / wanted_slots - 1)
        return [self.line(self._name(number), line, answer_s, pause_s) for line in range(lines)]

    def _name(self, number: int) -> str:
        return f"{self._sort(number).name}{number}"

    @staticmethod
    def _sort(number: int) -> Sort:
        return SORTS[number % len(SORTS)]
