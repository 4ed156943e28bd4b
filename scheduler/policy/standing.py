"""Where each pair of a line stands, while its jobs are taken one by one.

Owns: the head, the aged level and the rank of each pair of a level and an agent, and the charges that change them.
Never: knows of slots that are kept for others; what the order means is said in `claiming`.
"""

import math
from collections import deque
from operator import attrgetter

from scheduler.contract import Kind
from scheduler.policy.line import Line, Rules, Waiting, agent_name, pair_name

RANK = {Kind.MAIN: 0, Kind.SUBAGENT: 1, Kind.SIDE: 2, Kind.WARM: 3}


class Pair:
    """The jobs of one level and agent, and where the pair stands now."""

    def __init__(self, job: Waiting) -> None:
        self.level, self.key = job.level, job.key
        self.agent = agent_name(job.key, job.agent)
        self.head = self.oldest = job
        self.aged = job.level
        self.rank: tuple[float, float, float, int] = (0.0, 0.0, 0.0, 0)
        self.changes_ms = 0.0
        self._by_kind: dict[Kind, deque[Waiting]] = {}

    def add(self, job: Waiting) -> None:
        """Jobs come in the order of their arrival, so the first of each kind is the best of it."""
        self._by_kind.setdefault(job.kind, deque()).append(job)

    def take_head(self) -> bool:
        """True when more jobs are left."""
        jobs = self._by_kind[self.head.kind]
        jobs.popleft()
        if not jobs:
            del self._by_kind[self.head.kind]
        return bool(self._by_kind)

    def order(self, now_ms: float, ageing_ms: float) -> None:
        """Choose its head and its aged level, which hold until `changes_ms` or the next claim."""
        firsts = [jobs[0] for jobs in self._by_kind.values()]
        self.oldest = min(firsts, key=attrgetter("arrival"))
        self.head = min(firsts, key=lambda job: (_rank(job, now_ms, ageing_ms), job.arrival))
        self.aged = self.level - _steps(self.oldest.arrival_ms, now_ms, ageing_ms)
        starts = [job.arrival_ms for job in firsts]
        self.changes_ms = min(start + ageing_ms * (_steps(start, now_ms, ageing_ms) + 1) for start in starts)


class Books:
    """Pairs and service while jobs are taken. Service is counted as at the line's own time: it all fades alike, so what
    is charged later counts for as much more as the rest has faded since."""

    def __init__(self, line: Line, rules: Rules) -> None:
        self.rules, self.now_ms, self._start_ms = rules, line.now_ms, line.now_ms
        half_life_ms = rules.half_life_ms
        self._key_ms = {name: had.faded(line.now_ms, half_life_ms) for name, had in line.keys.items()}
        self._agent_ms = {name: had.faded(line.now_ms, half_life_ms) for name, had in line.agents.items()}
        by_name: dict[str, Pair] = {}
        for job in sorted(line.waiting, key=attrgetter("arrival")):
            name = pair_name(job.level, job.key, job.agent)
            if name not in by_name:
                by_name[name] = Pair(job)
            by_name[name].add(job)
        self.pairs = list(by_name.values())
        for pair in self.pairs:
            pair.order(line.now_ms, rules.ageing_ms)
            self._place(pair)

    def go_to(self, now_ms: float) -> None:
        self.now_ms = now_ms
        for pair in self.pairs:
            if pair.changes_ms <= now_ms:
                pair.order(now_ms, self.rules.ageing_ms)
                self._place(pair)

    def claim(self, pair: Pair) -> Waiting:
        job = pair.head
        charge_ms = job.expected_ms * 2.0 ** ((self.now_ms - self._start_ms) / self.rules.half_life_ms)
        self._key_ms[pair.key] = self._key_ms.get(pair.key, 0.0) + charge_ms
        self._agent_ms[pair.agent] = self._agent_ms.get(pair.agent, 0.0) + charge_ms
        if pair.take_head():
            pair.order(self.now_ms, self.rules.ageing_ms)
        else:
            self.pairs.remove(pair)
        for other in self.pairs:
            if other.key == pair.key:
                self._place(other)
        return job

    def _place(self, pair: Pair) -> None:
        key_ms = self._key_ms.get(pair.key, 0.0) / pair.head.key_weight
        agent_ms = self._agent_ms.get(pair.agent, 0.0) / pair.head.agent_weight
        pair.rank = (pair.aged, key_ms, agent_ms, pair.oldest.arrival)


def _rank(job: Waiting, now_ms: float, ageing_ms: float) -> int:
    return max(0, RANK[job.kind] - _steps(job.arrival_ms, now_ms, ageing_ms))


def _steps(since_ms: float, now_ms: float, ageing_ms: float) -> int:
    return math.floor(max(0.0, now_ms - since_ms) / ageing_ms)
