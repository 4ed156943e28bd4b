"""A worker's line as it will be served if nobody else comes.

Owns: when each job of the line is started, and when one that comes now would be: the order of claims over the times at
which slots come free.
Never: reads anything, knows a clock, decides what a wait is worth.

A line is run through once; where a newcomer would come in is found by comparing it with each claim of that run. What is
kept for agents in a tool call is left out of account: it is short.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from scheduler.policy.claiming import MOST_URGENT_LEVEL, Line, Rules, Service, Waiting, agent_name
from scheduler.policy.load import kept_slots
from scheduler.policy.standing import RANK, Books
from scheduler.policy.waiting import Slots, Times

MOST_HALF_LIVES = 100
Had = tuple[Service, Service]  # of a key and of an agent


@dataclass(frozen=True, slots=True)
class Step:
    """A claim to come: the job, in how many ms, and the rank with which it comes before the others."""

    job: Waiting
    start_ms: float
    rank: tuple[float, ...]


class Outlook:
    """What `line` will do, with what is left of each running job, and the service of each waiting one by its id.

    `queued` is the length of the line where not all of it is looked at: the others are taken to be alike.
    """

    def __init__(
        self, line: Line, rules: Rules, running: Sequence[Times], services: Mapping[str, Times], queued: int = 0
    ) -> None:
        self.line = line
        self.queued = max(queued, len(line.waiting))
        self._rules = rules
        self._running = running
        self._services = services
        self._unseen = self.queued / max(1, len(line.waiting))

    def free_for(self, level: int) -> bool:
        """Whether the next job that comes, if it is of that level, is started at once."""
        return len(self._running) + self.queued < self.slots_for(level)

    def slots_for(self, level: int) -> int:
        """The slots that a job of that level may have."""
        return self.line.slots - (0 if level <= MOST_URGENT_LEVEL else self._kept)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The claims to come, in their order."""
        return self._run[0]

    def start_ms(self, job: Waiting, had: Had | None = None) -> float:
        """In how many ms `job`, which comes now and is not in the line, would be started; inf without a slot.

        `had`: where the line itself does not say what service its key and its agent had.
        """
        if self.free_for(job.level):
            return 0.0
        steps, end_ms = self._run if job.level > MOST_URGENT_LEVEL else self._urgent_run
        newcomer = _Newcomer(job, self.line, self._rules, had or self._had(job))
        for step in steps:
            if newcomer.comes_before(step):
                return step.start_ms
            newcomer.see(step)
        return end_ms * max(1.0, self._unseen)

    def with_one_more(self, job: Waiting, service: Times) -> "Outlook":
        """The same with `job` in the line."""
        line = replace(self.line, waiting=(*self.line.waiting, job))
        return Outlook(line, self._rules, self._running, {**self._services, job.id: service}, self.queued + 1)

    def without(self, job_id: str) -> "Outlook":
        """The same without that waiting job."""
        waiting = [job for job in self.line.waiting if job.id != job_id]
        if len(waiting) == len(self.line.waiting):
            return self
        services = {job.id: self._services[job.id] for job in waiting}
        return Outlook(replace(self.line, waiting=waiting), self._rules, self._running, services, self.queued - 1)

    def _had(self, job: Waiting) -> Had:
        none = Service()
        return self.line.keys.get(job.key, none), self.line.agents.get(agent_name(job.key, job.agent), none)

    @cached_property
    def _run(self) -> tuple[tuple[Step, ...], float]:
        return self._through(self.line.slots - self._kept)

    @cached_property
    def _urgent_run(self) -> tuple[tuple[Step, ...], float]:
        return self._through(self.line.slots) if self._kept else self._run

    @property
    def _kept(self) -> int:
        """Slots that are kept for the urgent levels and are not at work for them."""
        if self.line.urgent_until_ms <= self.line.now_ms:
            return 0
        urgent = sum(job.level <= MOST_URGENT_LEVEL for job in self.line.running)
        return kept_slots(self._rules.urgent_share, self.line.slots, urgent)

    def _through(self, count: int) -> tuple[tuple[Step, ...], float]:
        books, slots, steps = Books(self.line, self._rules), Slots(count, self._running), []
        while books.pairs:
            start_ms = slots.next_ms
            books.go_to(self.line.now_ms + _reckoned(start_ms, self._rules))
            pair = min(books.pairs, key=attrgetter("rank"))
            rank = pair.rank
            job = books.claim(pair)
            steps.append(Step(job, start_ms, rank))
            slots.take(self._services[job.id])
        return tuple(steps), slots.next_ms


def _reckoned(start_ms: float, rules: Rules) -> float:
    """The time up to which ageing and fading are reckoned: a line may never move, and powers overflow."""
    return min(start_ms, MOST_HALF_LIVES * rules.half_life_ms)


class _Newcomer:
    """A job that would be in the line, at each claim of a run without it."""

    def __init__(self, job: Waiting, line: Line, rules: Rules, had: Had) -> None:
        self._job, self._rules = job, rules
        self._key_ms, self._agent_ms = (service.faded(line.now_ms, rules.half_life_ms) for service in had)
        self._ahead = sum(self._is_mine(other) and RANK[other.kind] <= RANK[job.kind] for other in line.waiting)

    def comes_before(self, step: Step) -> bool:
        if self._ahead:
            return False
        waited_ms = _reckoned(step.start_ms, self._rules)
        rank = (
            self._job.level - math.floor(waited_ms / self._rules.ageing_ms),
            self._key_ms / self._job.key_weight,
            self._agent_ms / self._job.agent_weight,
            self._job.arrival,
        )
        return rank < step.rank

    def see(self, step: Step) -> None:
        """That claim was made before this job's."""
        job = step.job
        if job.key != self._job.key:
            return
        at_ms = _reckoned(step.start_ms, self._rules)
        charge_ms = job.expected_ms * 2.0 ** (at_ms / self._rules.half_life_ms)
        self._key_ms += charge_ms
        if job.agent == self._job.agent:
            self._agent_ms += charge_ms
        if self._is_mine(job):
            self._ahead -= RANK[job.kind] <= RANK[self._job.kind]

    def _is_mine(self, other: Waiting) -> bool:
        job = self._job
        return (other.level, other.key, other.agent) == (job.level, job.key, job.agent)
