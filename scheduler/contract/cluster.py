"""Workers as they speak of themselves, and the snapshot on which policies decide."""

from enum import StrEnum

from pydantic import Field

from scheduler.contract.base import CONTRACT_VERSION, Frozen, Version
from scheduler.contract.job import Kind


class WorkerState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    FAILING = "failing"
    SICK = "sick"  # its engine failed too often in a row; it rests
    RESTARTING = "restarting"  # its engine is, as planned; it takes work again soon
    DRAINING = "draining"
    DRAINED = "drained"

    @property
    def leaves(self) -> bool:
        """It takes no work, by somebody's will: what waits there goes elsewhere."""
        return self in (WorkerState.DRAINING, WorkerState.DRAINED)


class SlotInfo(Frozen):
    """One slot as its worker reports it: who holds it, how full it is (tokens), is it answering now.

    `saved_tokens` of them also lie in the store.
    """

    slot: int
    conversation: str | None = None
    agent: str | None = None
    kind: Kind | None = None
    busy: bool = False
    tokens: int = 0
    saved_tokens: int = 0


class StoreInfo(Frozen):
    """A worker's use of saved caches. `off` says why it saves and restores none; empty: it does.

    `place` is the same for workers that share a folder; empty: not known.

    Speeds are measured ones, 0 until then; `saves` to `failures` count since its engine last started.
    """

    off: str = "not probed yet"
    place: str = ""
    bytes_per_token: int = 0
    save_bytes_per_s: int = 0
    restore_bytes_per_s: int = 0
    saves: int = 0
    restores: int = 0
    failures: int = 0
    used_bytes: int = 0


class Rates(Frozen):
    """How fast an engine is, in tokens a second: one prefill, and one stream that is being generated.

    Measured means that forget; what no answer has shown yet is what a middling card does.
    """

    prefill_tokens_per_s: float = Field(1000.0, gt=0)
    decode_tokens_per_s: float = Field(30.0, gt=0)


class Tallies(Frozen):
    """What a worker has counted since its engine last started: slots that one conversation lost to another, and tokens
    that speculative decoding drafted, of which `accepted_tokens` were what the model said."""

    evictions: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class WorkerInfo(Frozen):
    """What a worker's lease says of itself, renewed each second. A new process is a new `incarnation`.

    `context_tokens` is the window of a slot, `prompt_limit_tokens` what a normal prompt may use of it.
    """

    version: Version = CONTRACT_VERSION
    name: str
    incarnation: str
    state: WorkerState
    reason: str = ""
    model: str = ""
    model_hash: str = ""
    context_tokens: int = 0
    prompt_limit_tokens: int = 0
    slots: tuple[SlotInfo, ...] = ()
    rates: Rates = Rates()
    store: StoreInfo = StoreInfo()
    tallies: Tallies = Tallies()
    vision: bool = False
    gpu: str = ""
    engine: str = ""
    engine_bytes: int = 0
    pid: int = 0
    engine_pid: int = 0
    started_ms: int = 0


class WorkerView(Frozen):
    """A living worker and its load. `queued` is per level, 0 first; `homes` counts conversations seen lately."""

    info: WorkerInfo
    queued: tuple[int, ...] = (0,) * 10
    running: int = 0
    homes: int = 0


class LostWorker(Frozen):
    """A worker without a lease that still has jobs: they are about to go elsewhere, or wait until somebody comes."""

    name: str
    queued: tuple[int, ...] = (0,) * 10
    running: int = 0


class ClusterView(Frozen):
    """A snapshot on which policies decide. `now_ms` is the broker's clock."""

    now_ms: int
    workers: tuple[WorkerView, ...] = ()
    lost: tuple[LostWorker, ...] = ()


class CountReply(Frozen):
    """`tokens` of the rendered prompt, as the engine counts them, or why it could not."""

    tokens: int | None = None
    error: str = ""
