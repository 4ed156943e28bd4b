"""What a run is judged by.

Owns: the times to the first token, the end, the prefilled tokens, and how evenly service was shared.
Never: keeps a request: eight bytes of each remain.
"""

from array import array
from collections.abc import Iterable

from tests.sim.engine import Engine
from tests.sim.request import Request


class Figures:
    """Fed by the cluster; read when the run is over. Times are virtual seconds, but for those of the simulator.

    `halfway` is the number of answers after which the fairness of the service so far is taken: at the end everybody has
    had what it asked for, whatever the policy.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.agents = 0
        self.halfway = 0
        self.requests = 0
        self.prefilled_tokens = 0
        self.wall_s = 0.0
        self.simulated_in_s = 0.0
        self.fairness = 1.0
        self._first_token_s = array("d")
        self._placed_s = array("d")
        self._sorted: list[float] = []
        self._service_s: dict[str, float] = {}

    def placed(self, took_s: float) -> None:
        """The policy has chosen a worker, which took it so long."""
        self._placed_s.append(took_s)

    def end(self, took_s: float) -> None:
        """The run is over; it took this machine so long."""
        self.simulated_in_s = took_s
        self._sorted = sorted(self._first_token_s)

    def answered(self, request: Request, engine: Engine) -> None:
        """An answer is complete."""
        self.requests += 1
        self.wall_s = request.ended_s
        self.prefilled_tokens += request.prefilled_tokens
        self._first_token_s.append(request.begun_s - request.arrival_s + request.ready_s)
        if self.requests <= self.halfway and request.identified:
            service_s = engine.service_s(request.prefilled_tokens, request.output_tokens)
            self._service_s[request.agent] = self._service_s.get(request.agent, 0.0) + service_s
        if self.requests == self.halfway:
            self.fairness = jain(self._service_s.values())
            self._service_s.clear()

    @property
    def mean_s(self) -> float:
        """Mean time from a request's arrival to its first token."""
        return sum(self._first_token_s) / max(1, self.requests)

    def quantile_s(self, share: float) -> float:
        """The time to the first token that `share` of the requests did not exceed."""
        return quantile(self._sorted, share)

    @property
    def placement_ms(self) -> float:
        """The median of what one placement took this machine, with all that the simulator does for it."""
        return quantile(sorted(self._placed_s), 0.5) * 1000


def quantile(ordered: list[float], share: float) -> float:
    """Of sorted values; 0 when there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def jain(values: Iterable[float]) -> float:
    """Jain's index of fairness: 1 when all are alike, 1/n when one has all."""
    listed = list(values)
    squares = sum(value * value for value in listed)
    return sum(listed) ** 2 / (len(listed) * squares) if squares else 1.0
