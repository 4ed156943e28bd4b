"""Cluster views for the policies' tests, made by hand or by Hypothesis.

Owns: how a view is built. Never: a policy.
"""

from hypothesis import strategies as st

from scheduler.contract import ClusterView, SlotInfo, WorkerInfo, WorkerState, WorkerView


def worker(
    name: str,
    *,
    slots: int = 2,
    queued: int = 0,
    running: int = 0,
    homes: int = 0,
    state: WorkerState = WorkerState.READY,
    reason: str = "",
    model: str = "",
) -> WorkerView:
    """A worker whose queued jobs are all at level 5."""
    info = WorkerInfo(
        name=name,
        incarnation=f"{name}-1",
        state=state,
        reason=reason,
        model=model,
        slots=tuple(SlotInfo(slot=number) for number in range(slots)),
    )
    levels = (0, 0, 0, 0, 0, queued, 0, 0, 0, 0)
    return WorkerView(info=info, queued=levels, running=running, homes=homes)


def view(*workers: WorkerView) -> ClusterView:
    return ClusterView(now_ms=0, workers=workers)


_counts = st.integers(0, 40)
views = st.lists(
    st.builds(
        worker,
        st.sampled_from([f"w{number}" for number in range(20)]),
        slots=st.integers(0, 8),
        queued=_counts,
        running=st.integers(0, 8),
        homes=_counts,
        state=st.sampled_from(WorkerState),
    ),
    max_size=20,
    unique_by=lambda made: made.info.name,
).map(lambda workers: view(*workers))
conversations = st.text(max_size=20)
bounds = st.floats(1, 4)
