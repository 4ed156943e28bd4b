"""Fleets and jobs for placement's tests.

Owns: how they are built. Never: a policy.
"""

from hypothesis import strategies as st

from scheduler.contract import ClusterView, Rates, SlotInfo, StoreInfo, WorkerInfo, WorkerState, WorkerView
from scheduler.policy.claiming import agent_name
from scheduler.policy.fleet import Fleet, fleet
from scheduler.policy.lengths import UNKNOWN, Length
from scheduler.policy.load import Ahead, Load
from scheduler.policy.placement import Home, Known

RATES = Rates(prefill_tokens_per_s=500, decode_tokens_per_s=20)
NOW_MS = 1_000_000


def worker(
    name: str,
    *,
    slots: int = 2,
    homes: int = 0,
    rates: Rates = RATES,
    window: int = 0,
    store: StoreInfo | None = None,
    held: tuple[SlotInfo, ...] = (),
    state: WorkerState = WorkerState.READY,
) -> WorkerView:
    """A worker whose first slots are `held`, the others free."""
    info = WorkerInfo(
        name=name, incarnation=f"{name}-1", state=state, model="m", prompt_limit_tokens=window, rates=rates,
        slots=(*held, *(SlotInfo(slot=number) for number in range(len(held), slots))), store=store or StoreInfo(),
    )  # fmt: skip
    return WorkerView(info=info, homes=homes)


def holding(conversation: str, tokens: int, saved_tokens: int = 0, slot: int = 0) -> SlotInfo:
    return SlotInfo(slot=slot, conversation=conversation, tokens=tokens, saved_tokens=saved_tokens)


def fleet_of(*workers: WorkerView) -> Fleet:
    return fleet(ClusterView(now_ms=NOW_MS, workers=workers))


def known(
    conversation: str = "c",
    *,
    prompt_tokens: int = 1000,
    home: Home | None = None,
    agent: str = "me",
    level: int = 5,
    length: Length = UNKNOWN,
) -> Known:
    return Known(conversation, agent_name("k", agent), level, prompt_tokens, length, home)


def busy(running: int = 0, queued: int = 0, each_ms: float = 10_000, homes: int = 0, level: int = 5) -> Load:
    """So many jobs of other agents, of one length."""
    line = tuple(Ahead(level, agent_name("k", f"other-{number}"), each_ms) for number in range(queued))
    return Load((each_ms,) * running, line, queued, homes)


_rates = st.builds(Rates, prefill_tokens_per_s=st.floats(50, 20_000), decode_tokens_per_s=st.floats(2, 500))
_workers = st.builds(
    worker,
    st.sampled_from([f"w{number}" for number in range(24)]),
    slots=st.integers(0, 8),
    homes=st.integers(0, 40),
    rates=_rates | st.just(Rates()),
    window=st.sampled_from([0, 8_000, 32_000, 200_000]),
    state=st.sampled_from([*[WorkerState.READY] * 3, *WorkerState]),
)
clusters = st.lists(_workers, max_size=24, unique_by=lambda made: made.info.name).map(tuple)
agents = st.sampled_from(["a", "b", "c"])
_ahead = st.builds(Ahead, st.integers(0, 9), agents.map(lambda name: agent_name("k", name)), st.floats(0, 60_000))
loads = st.builds(
    lambda running, line, homes: Load(tuple(running), tuple(sorted(line, key=lambda job: job.level)), len(line), homes),
    st.lists(st.floats(0, 60_000), max_size=8),
    st.lists(_ahead, max_size=50),
    st.integers(0, 40),
)
jobs = st.builds(
    known,
    st.text(max_size=20),
    prompt_tokens=st.integers(0, 100_000),
    agent=agents,
    level=st.integers(0, 9),
    home=st.none() | st.builds(Home, st.sampled_from([f"w{number}" for number in range(24)]), st.integers(0, 100_000)),
)
bounds = st.floats(1, 4)
