"""Which slot to take when none is free of a conversation.

Owns: the value of what a slot holds: tokens that would have to be prefilled again, times the chance that its
conversation comes back soon. The least valuable one is taken.
Never: knows an engine, a thread or a clock; times are given.

The last stop reason predicts the return. After `tool_use` the client runs a tool and comes back in seconds; its own
past gaps say how many. After `end_turn` a human reads. A subagent that ended its turn has reported and is over. A side
call (title, summary, classifier) never comes back, nor does a warm-up.

Gaps are heavy-tailed: most are short, some last an hour. With a Lomax distribution of shape 1 and scale `gap` the
chance to return within the next `HORIZON_S` after `idle` seconds of silence is HORIZON / (HORIZON + gap + idle): it
falls with silence but never jumps, and needs one parameter, the usual gap.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from scheduler.contract import Kind, StopReason

HORIZON_S = 60.0
TOOL_GAP_S = 5.0  # until a conversation has shown gaps of its own
HUMAN_GAP_S = 120.0
OVER_CHANCE = 0.001  # nearly nothing, so that of two that are over the cheaper one goes first
WORTHLESS_TOKENS = 100.0
LEARNT = 0.3
_NO_USE: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Holding:
    """What a slot holds: `idle_s` since its last answer ended, `gap_s` its conversation's usual gap if known."""

    slot: int
    kind: Kind
    tokens: int
    stop_reason: StopReason | None
    idle_s: float
    gap_s: float | None = None


def victim(holdings: Iterable[Holding], of_use: Mapping[int, int] = _NO_USE) -> int:
    """The slot whose loss costs least; of equals the longest idle, then the lowest. Needs one holding at least.

    Of those that are worth nothing, one that holds a beginning of the new prompt goes first: `of_use` says for each
    slot how many tokens of it.
    """

    def cost(holding: Holding) -> tuple[float, int, float, float, int]:
        lost = value(holding)
        useful = of_use.get(holding.slot, 0) if lost <= WORTHLESS_TOKENS else 0
        return max(lost, WORTHLESS_TOKENS), -useful, lost, -holding.idle_s, holding.slot

    return min(holdings, key=cost).slot


def value(holding: Holding) -> float:
    """Tokens that the loss is expected to cost: tokens held times the chance of a return within HORIZON_S."""
    return holding.tokens * chance(holding)


def chance(holding: Holding, horizon_s: float = HORIZON_S) -> float:
    """Between 0 and 1: that the conversation comes back within `horizon_s`."""
    reason = holding.stop_reason
    if holding.kind in (Kind.SIDE, Kind.WARM) or (holding.kind is Kind.SUBAGENT and reason is not StopReason.TOOL_USE):
        return OVER_CHANCE
    usual_s = holding.gap_s if holding.gap_s is not None else _usual_gap_s(reason)
    return horizon_s / (horizon_s + usual_s + max(0.0, holding.idle_s))


def learnt_gap_s(before_s: float | None, seen_s: float) -> float:
    """The usual gap after another one was seen: an exponential mean, so that recent habits count more."""
    return seen_s if before_s is None else before_s + LEARNT * (seen_s - before_s)


def _usual_gap_s(reason: StopReason | None) -> float:
    return TOOL_GAP_S if reason is StopReason.TOOL_USE else HUMAN_GAP_S
