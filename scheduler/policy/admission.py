"""Whether a request may wait here at all, and what a refused one is told.

Owns: which workers can serve a model, the refusal when none can, and the `Retry-After` of each refusal.
Never: chooses among the able ones.
"""

import math

from scheduler.contract import ClusterView, WorkerState, WorkerView

LONGEST_RETRY_S = 60  # a larger value makes the client give up at once
LOADING_RETRY_S = 5


def serving(view: ClusterView, model: str) -> ClusterView:
    """The view without workers of other models; one that loads may not have told its own. "" stands for any model."""
    workers = tuple(worker for worker in view.workers if not model or worker.info.model in (model, ""))
    return view if len(workers) == len(view.workers) else view.model_copy(update={"workers": workers})


def able(view: ClusterView) -> tuple[WorkerView, ...]:
    """The workers that take new work now; where there are none, those that do in a moment: it waits for them."""
    return ready(view) or tuple(worker for worker in view.workers if worker.info.state is WorkerState.RESTARTING)


def ready(view: ClusterView) -> tuple[WorkerView, ...]:
    """The workers whose engines take work now."""
    return tuple(worker for worker in view.workers if worker.info.state is WorkerState.READY)


def why_none(view: ClusterView) -> str:
    """One sentence for a caller whom nobody can serve; ends with what to do."""
    if not view.workers:
        return "no worker is running; start one with `corral up` or `corral worker`"
    states = {worker.info.state for worker in view.workers}
    if WorkerState.LOADING in states:
        return "the model is still loading; try again shortly"
    if all(state.leaves for state in states):
        return "all workers are drained or being stopped; start another one, or take one back with `corral undrain`"
    reasons = sorted({worker.info.reason for worker in view.workers if worker.info.reason})
    return f"no worker is ready: {'; '.join(reasons) or 'their engines are restarting'}"


def retry_after_s(view: ClusterView, answer_s: float) -> int:
    """When a place is likely free: jobs ahead over slots, times a usual answer's seconds; 1 to 60, whole."""
    workers = able(view)
    slots = sum(len(worker.info.slots) for worker in workers)
    if not slots:
        return LOADING_RETRY_S
    ahead = sum(sum(worker.queued) + worker.running for worker in workers)
    return max(1, min(LONGEST_RETRY_S, math.ceil(ahead / slots * answer_s)))
