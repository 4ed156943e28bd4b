"""Whether an engine that owes tokens hangs, or is only slow.

Owns: when silence is worth a look, and what two looks at the engine say together.
Never: looks, waits, ends anything. Times come with the question.

Silence alone proves nothing: a long prompt on a small machine is silent for minutes. So the engine is looked at first:
its loop answers questions about its slots between two steps and never within one, and a step costs processor time.
"""

from dataclasses import dataclass
from enum import StrEnum

STEP_TOKENS = 2048  # the most that llama.cpp takes in one step; only then does it tell of progress
PATIENCE = 4.0  # a step may take so many times what is expected before it is looked at
BUSY_SHARE = 0.05  # of one core; an engine that waits for nothing uses less


class Loop(StrEnum):
    """What the engine's loop answered since the last look."""

    MOVES = "moves"  # its slots are further than they were, or none of them works
    STANDS = "stands"  # it answers, and no slot that works is further
    SILENT = "silent"  # it does not answer: a step takes long, or it hangs


@dataclass(frozen=True, slots=True)
class Look:
    """`silent_s` since the last token or progress of any answer, `busy_share` of a core used since the last look."""

    silent_s: float
    loop: Loop
    busy_share: float


def suspicious(silent_s: float, prefill_tokens_per_s: float, hang_s: float) -> bool:
    """Whether the engine is to be looked at: it is silent beyond `hang_s` and beyond what a step should take."""
    return silent_s >= max(hang_s, PATIENCE * STEP_TOKENS / prefill_tokens_per_s)


def hangs(look: Look, longest_s: float) -> bool:
    """Whether nothing more is to be expected. An engine that computes is believed until `longest_s` of silence."""
    if look.loop is Loop.MOVES:
        return False  # whoever still waits has its own deadlines
    if look.loop is Loop.STANDS:
        return True
    return look.busy_share < BUSY_SHARE or look.silent_s >= longest_s
