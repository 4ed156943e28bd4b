"""What an overload did to those who were refused, to those who were let in, and to the API. Pure.

Owns: which attempt counts as what.
Never: asks anybody.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median

from infra.bench import shares
from infra.bench.asking import Outcome
from infra.bench.overload_load import Attempt
from infra.bench.report import Figures, percentile, spread_ms

CAP_S = 60  # the longest wait that a client may be told; what lies beyond it cannot be said
MEGABYTE = 2**20


def figures_of(attempts: Sequence[Attempt]) -> Figures:
    """Everything about the callers. Times of refusals and answers as they met them."""
    refused = [attempt for attempt in attempts if attempt.refused]
    let_in = [attempt.first for attempt in attempts if not attempt.refused]
    figures: Figures = {
        "callers": len(attempts),
        "let_in": len(let_in),
        "refused": {str(status): n for status, n in sorted(Counter(a.first.status for a in refused).items())},
        "errors": sorted({outcome.error for outcome in let_in if outcome.error}),
    }
    if refused:
        figures["refusal_ms"] = spread_ms([attempt.first.whole_s for attempt in refused])
        told = [attempt.first.retry_after_s for attempt in refused]
        figures["told_s"] = {"least": min(told), "p50": median(told), "most": max(told)}
        figures["retries"] = _retries([attempt for attempt in refused if attempt.first.retry_after_s < CAP_S])
        figures["retries_told_the_cap"] = _retries([a for a in refused if a.first.retry_after_s >= CAP_S])
    figures["answers"] = _answers([outcome for outcome in _all(attempts) if outcome.fine])
    figures["prediction"] = shares.prediction(_all(attempts))
    return figures


def own_s(outcomes: Sequence[Outcome]) -> float:
    """Median time of these answers without their wait in the line. Raises StatisticsError without any."""
    return median(outcome.whole_s - max(0, outcome.queue_ms) / 1000 for outcome in outcomes if outcome.fine)


def growth(samples: Sequence[int]) -> Figures:
    """Memory in the second and in the last quarter of a run, in MB, and the ratio of both."""
    quarter = max(1, len(samples) // 4)
    early, late = fmean(samples[quarter : 2 * quarter] or samples), fmean(samples[-quarter:])
    return {
        "early_mb": round(early / MEGABYTE, 1),
        "late_mb": round(late / MEGABYTE, 1),
        "most_mb": round(max(samples) / MEGABYTE, 1),
        "ratio": round(late / early, 3),
    }


def _all(attempts: Sequence[Attempt]) -> list[Outcome]:
    return [outcome for attempt in attempts for outcome in (attempt.first, attempt.again) if outcome is not None]


def _retries(refused: Sequence[Attempt]) -> Figures:
    tried = [attempt.again for attempt in refused if attempt.again is not None]
    fine = sum(outcome.fine for outcome in tried)
    figures: Figures = {"told": len(refused), "tried": len(tried), "succeeded": fine}
    if tried:
        figures["share"] = round(fine / len(tried), 3)
    if errors := Counter(f"{outcome.status} told {outcome.retry_after_s}" for outcome in tried if not outcome.fine):
        figures["failed"] = dict(errors.most_common(5))
    return figures


def _answers(fine: Sequence[Outcome]) -> Figures:
    if not fine:
        return {"answers": 0}
    waits = [outcome.queue_ms / 1000 for outcome in fine if outcome.queue_ms >= 0]
    figures: Figures = {"answers": len(fine), "own_s": round(own_s(fine), 2)}
    if waits:
        figures["wait_s"] = {"p50": round(median(waits), 2), "p90": round(percentile(waits, 0.9), 2)}
        figures["longest_wait_s"] = round(max(waits), 2)
    return figures
