"""One request as the simulator sees it: sizes, who asks, and when what happened to it.

Owns: these facts. Times are virtual seconds.
Never: decides anything.
"""

from dataclasses import dataclass

from scheduler.contract import Kind, StopReason
from scheduler.policy.lengths import UNKNOWN, Length

NOT_YET = -1.0


@dataclass(slots=True, eq=False)
class Request:
    """`kept_tokens` of its prompt are the beginning of what its conversation's last turn left behind (0: a first turn).

    Of those, and of a first prompt, `base_tokens` are system text and tools, which all of the same `base` share.
    `length` is the distribution that `output_tokens` were drawn from, which no policy knows. With `last` its
    conversation ends. `ready_s` is what it took from its begin to its first token.
    """

    agent: str
    conversation: str
    kind: Kind
    base: str
    base_tokens: int
    prompt_tokens: int
    kept_tokens: int
    output_tokens: int
    stop_reason: StopReason
    length: Length = UNKNOWN
    key: str = "house"
    level: int = 5
    identified: bool = True
    last: bool = False
    number: int = 0
    arrival_s: float = NOT_YET
    begun_s: float = NOT_YET
    prefilled_tokens: int = 0
    ready_s: float = 0.0
    ended_s: float = NOT_YET
    worker: int = -1
    moves: int = 0

    @property
    def held_tokens(self) -> int:
        """What it leaves in its slot."""
        return self.prompt_tokens + self.output_tokens
