"""How what was served is shared out, and how well the wait was foretold. Pure.

Owns: service of an answer, Jain's index, waits by level, and the error of a prediction.
Never: asks anybody.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from infra.bench.asking import Outcome
from infra.bench.lines import CUT_OFF, Served
from infra.bench.report import Figures, percentile

TOLD_MS = 50  # waits and predictions below this say only that a slot was free


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens a second of one stream."""

    prefill: float
    decode: float

    def service_s(self, outcome: Outcome) -> float:
        """Seconds of a slot that an answer was worth: prompt tokens that were not cached, and its output."""
        fresh = outcome.prompt_tokens - outcome.cached_tokens
        return fresh / self.prefill + outcome.output_tokens / self.decode


def jain(shares: Iterable[float]) -> float:
    """Jain's index of fairness: 1 when all shares are equal, 1/n when one has everything. 0 when nobody has anything.

    R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness and Discrimination, 1984.
    """
    given = list(shares)
    squares = sum(share * share for share in given)
    return sum(given) ** 2 / (len(given) * squares) if squares else 0.0


def attained_s(served: Sequence[Served], pace: Pace) -> dict[str, float]:
    """Service of each agent that asked, in seconds of a slot."""
    attained: dict[str, float] = defaultdict(float)
    for one in served:
        attained[one.line.agent] += pace.service_s(one.outcome) if one.outcome.fine else 0.0
    return dict(attained)


def waits(served: Sequence[Served]) -> Figures:
    """Answers, mean latency and the longest wait for a first text, of each level."""
    levels: dict[int, list[Served]] = defaultdict(list)
    for one in served:
        levels[one.line.level].append(one)
    return {f"level {level}": _waits(levels[level]) for level in sorted(levels)}


def _waits(served: Sequence[Served]) -> Figures:
    fine = [one.outcome for one in served if one.outcome.fine]
    figures: Figures = {"answers": len(fine), "longest_wait_s": round(max(one.waited_s for one in served), 2)}
    if fine:
        figures["mean_s"] = round(fmean(outcome.whole_s for outcome in fine), 2)
        figures["p90_s"] = round(percentile([outcome.whole_s for outcome in fine], 0.9), 2)
    return figures


def latency_ratio(served: Sequence[Served], agents: Iterable[str], others: Iterable[str]) -> float | None:
    """Mean time to the end of the answers of `agents` over that of the others; None when either have no answer."""
    both = [
        [one.outcome.whole_s for one in served if one.line.agent in who and one.outcome.fine]
        for who in (set(agents), set(others))
    ]
    return fmean(both[0]) / fmean(both[1]) if all(both) else None


def failures(served: Sequence[Served]) -> list[str]:
    """The errors there were; to be cut off at the end is none."""
    return sorted({one.outcome.error for one in served if one.outcome.error not in ("", CUT_OFF)})


def prediction(outcomes: Iterable[Outcome]) -> Figures:
    """How far the wait foretold at arrival was from the wait there was, in ms, of all that had to wait or were told to.

    Empty when no answer brought both.
    """
    told = [outcome for outcome in outcomes if min(outcome.eta_ms, outcome.queue_ms) >= 0]
    waited = [outcome for outcome in told if max(outcome.eta_ms, outcome.queue_ms) >= TOLD_MS]
    if not waited:
        return {}
    errors = [outcome.eta_ms - outcome.queue_ms for outcome in waited]
    return {
        "told": len(told),
        "waited": len(waited),
        "wait_ms": _median_and_p90([outcome.queue_ms for outcome in waited]),
        "error_ms": _median_and_p90([abs(error) for error in errors]),
        "early_by_ms": round(-median(errors)),  # positive: the wait was longer than foretold
        "error_of_wait": round(median(map(abs, errors)) / max(1, median(o.queue_ms for o in waited)), 2),
    }


def ratio_of_weights(attained: Mapping[str, float], heavy: Iterable[str], light: Iterable[str]) -> float:
    """Service of the heavy agents over that of the light ones, per agent. 0 when the light ones had none."""
    upper, lower = (fmean(attained.get(agent, 0.0) for agent in agents) for agents in (list(heavy), list(light)))
    return upper / lower if lower else 0.0


def _median_and_p90(values: Sequence[float]) -> Figures:
    return {"p50": round(median(values)), "p90": round(percentile(values, 0.9))}
