"""What this worker serves: one model on one engine with its slots.

Owns: the engine's facts once it is ready, whether tickets may be taken, and how a request becomes a generation.
Never: a job, Redis, Celery.
"""

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import structlog

from infra import model_facts, sizing, store_folder
from infra.config import Settings
from infra.errors import EngineLost, StartError
from infra.gguf_file import file_hash
from infra.model_setting import HfModel
from scheduler.contract import GenerationRequest, Rates, StoreInfo, Tallies, WorkerInfo, WorkerState
from scheduler.policy import garbage
from workers import store_probe
from workers.caches import Caches
from workers.llama.client import Deadlines, EngineClient, Generation
from workers.llama.command import Engine, build
from workers.llama.engine_log import short_of_memory
from workers.llama.model import ModelProfile, served_name
from workers.llama.process import EngineProcess, EngineProps, EngineState
from workers.llama.pulse import Pulse
from workers.llama.render import answer_rules, render
from workers.meter import USUAL_RATES, Meter, WriteBudget
from workers.slots import SlotTable
from workers.store import Store

log = structlog.get_logger(__name__)
ANSWERS_S = 1.0
STATES = {
    EngineState.STOPPED: WorkerState.LOADING,
    EngineState.STARTING: WorkerState.LOADING,
    EngineState.READY: WorkerState.READY,
    EngineState.FAILING: WorkerState.FAILING,
    EngineState.SICK: WorkerState.SICK,
    EngineState.STOPPING: WorkerState.DRAINING,
}


class Serving:
    """The engine and its slots, shared by the threads of a worker."""

    def __init__(self, settings: Settings, engine: Engine, model: Path | HfModel, profile: ModelProfile) -> None:
        self.name = settings.worker_name
        self.caches: Caches | None = None
        self.model_name = served_name(model, settings.model_name)
        self.model_hash = file_hash(model) if isinstance(model, Path) else ""
        self.draining = threading.Event()
        self.consuming = threading.Event()
        self.aside: WorkerState | None = None  # it takes no work for a while, as planned
        self.why_aside = ""
        self.on_change: Callable[[], None] = _nobody
        self.on_engine_gone: Callable[[], None] = _nobody
        self.on_condemned: Callable[[str], None] = self._end_engine
        self.engine_gone = False
        self._stopping = False
        self._settings = settings
        self._profile = profile
        self._engine = engine
        self._store_trouble = store_probe.prepare(settings)
        if self._store_trouble and settings.store_folder is not None:  # off is no trouble
            log.warning("store_not_used", reason=self._store_trouble)
        self._budget = WriteBudget(settings.store_write_bytes_per_s)
        self._client: EngineClient | None = None
        self.pulse = Pulse()
        self.silence = ""  # words, while its engine is silent for longer than it should be
        self._garbled = 0  # answers in a row
        self._props: EngineProps | None = None
        self.engine = EngineProcess(settings, engine, model, profile, self._engine_changed)

    @property
    def context_tokens(self) -> int:
        """The window of a slot, as the engine says; 0 before it ever was ready."""
        return self._props.context_tokens if self._props else 0

    @property
    def prompt_limit_tokens(self) -> int:
        return self.context_tokens - self._settings.reserve_tokens(self.context_tokens)

    @property
    def slot_count(self) -> int:
        """Slots of the engine, as it says itself; 0 before it ever was ready."""
        return self._props.slots if self._props else 0

    @property
    def rates(self) -> Rates:
        return self.caches.meter.rates if self.caches else USUAL_RATES

    @property
    def prefill_tokens_per_s(self) -> float:
        """As in `rates`."""
        return self.caches.meter.prefill_tokens_per_s if self.caches else USUAL_RATES.prefill_tokens_per_s

    def usable_slots(self) -> int:
        """How many tickets may be in work now."""
        ready = self._client is not None and not self.draining.is_set() and self.aside is None
        return self.slot_count if ready else 0

    def doubt(self, reason: str) -> None:
        """The engine lost an answer for this `reason`: unless it still answers, take no ticket until it is ready again.

        The engine's supervisor hears of its end a little later than the answers that it cut, and each of them makes
        room for a job that would be lost too. One that answers, but is short of memory, is restarted.
        """
        client = self._client
        if client is None:
            return
        if _answers(self.engine.base_url):
            if short := reason if short_of_memory(reason) else self.engine.want_of_memory():
                self.on_condemned(short)
        elif client is self._client:
            self._client = None
            client.close()
            self.on_change()

    def said(self, *, garbled: bool) -> None:
        """An answer has ended; an engine that garbles one after the other is restarted."""
        self._garbled = garbage.row(self._garbled, garbled=garbled)
        if garbage.speaks_against_engine(self._garbled):
            self.on_condemned(f"its last {self._garbled} answers repeated one token again and again")

    def set_aside(self, state: WorkerState | None, why: str = "") -> None:
        """Take no work from now on, or again; others hear of it at once."""
        self.aside, self.why_aside = state, why
        self.on_change()

    def stop_engine(self, grace_s: float) -> None:
        """End the engine, by force after `grace_s`."""
        self._stopping = True
        self.engine.stop(grace_s)

    def engine_bytes(self) -> int:
        return self.engine.rss_bytes()

    def generation(
        self, request: GenerationRequest, slot: int, waited_s: float = 0.0, traceparent: str = ""
    ) -> Generation:
        """The answer to `request` in `slot`, not yet asked for; its client has waited for `waited_s`. `traceparent` is
        what the engine is told of its trace.

        Raises EngineLost while there is no engine.
        """
        body = orjson.dumps(self._render(request, slot))
        limit = self._settings.repeat_limit_tokens
        rules = answer_rules(request, context_tokens=self.context_tokens, repeat_limit=limit)
        return self._ready_client().generate(body, rules, request.limits, waited_s, traceparent)

    def count(self, request: GenerationRequest) -> int:
        """Tokens of the rendered prompt. Raises EngineError."""
        return self._ready_client().count(self._render(request, 0))

    def ends_with(self, request: GenerationRequest, text: str) -> bool:
        """Whether the rendered prompt ends with `text`, blanks included. Raises EngineError."""
        return self._ready_client().prompt_of(self._render(request, 0)).endswith(text)

    def info(self, incarnation: str, started_ms: int) -> WorkerInfo:
        """What the lease says."""
        return WorkerInfo(
            name=self.name,
            incarnation=incarnation,
            state=self._state(),
            reason=self.why_aside or self.engine.reason or self.silence,
            model=self.model_name,
            model_hash=self.model_hash,
            context_tokens=self.context_tokens,
            prompt_limit_tokens=self.prompt_limit_tokens,
            slots=self.caches.table.snapshot() if self.caches else (),
            rates=self.rates,
            store=self.caches.info() if self.caches else StoreInfo(),
            tallies=self.caches.meter.tallies(self.caches.table.evictions) if self.caches else Tallies(),
            vision=self._vision,
            gpu=self._settings.gpu,
            engine=self._engine.kind,
            engine_bytes=self.engine_bytes(),
            engine_pid=self.engine.pid,
            started_ms=started_ms,
        )

    def _end_engine(self, reason: str) -> None:
        self.engine.condemn(reason)

    def _state(self) -> WorkerState:
        if self.draining.is_set():
            return WorkerState.DRAINING
        if self.aside is not None:
            return self.aside
        state = STATES[self.engine.state]
        return WorkerState.LOADING if state is WorkerState.READY and not self.consuming.is_set() else state

    @property
    def _vision(self) -> bool:
        return bool(self._props and self._props.vision)

    def _render(self, request: GenerationRequest, slot: int) -> dict[str, object]:
        return render(
            request,
            slot=slot,
            stop=self._profile.stop,
            vision=self._vision,
            context_tokens=self.context_tokens,
            call_joint=self._props.call_joint if self._props else "",
        )

    def _ready_client(self) -> EngineClient:
        client = self._client
        if client is None:
            raise EngineLost("the engine is not ready")
        return client

    def _engine_changed(self, state: EngineState) -> None:
        old, self._client = self._client, None
        if old is not None:
            old.close()
        if state is EngineState.READY:
            self._props = self.engine.props
            self.model_hash = self.model_hash or file_hash(Path(self._props.model_path))
            self.pulse, self._garbled = Pulse(), 0
            client = self._new_client()
            self.caches = self._new_caches(client, self._props)
            self._client = client  # last: it opens the gate
        if state is EngineState.STOPPED and self._props is not None and not self._stopping:
            self.engine_gone = True  # its supervisor failed: nobody will start it again
            self.on_engine_gone()
        self.on_change()

    def _new_caches(self, client: EngineClient, props: EngineProps) -> Caches:
        """A new engine's slots are empty; what was saved of an earlier one is still there."""
        if self.caches is not None and self.caches.saved is not None:
            self.caches.saved.describe()  # what the last engine wrote in its last moment
        table, meter = SlotTable(props.slots, sizing.shape(self._settings).scratch_slots), Meter()
        try:
            store, off = self._store(client, props, meter)
        except Exception as error:  # whatever it is, it costs prefills; without caches the worker would answer nobody
            log.exception("store_not_opened")
            store, off = None, f"it could not be opened: {type(error).__name__}"
        return Caches(table, client, store, meter, self._budget, off)

    def _store(self, client: EngineClient, props: EngineProps, meter: Meter) -> tuple[Store | None, str]:
        """The store for this engine, and why it is not used; `meter` is told of known speeds."""
        settings, folder = self._settings, self._settings.store_folder
        if folder is None or self._store_trouble:
            return None, self._store_trouble
        name = store_probe.space(settings, self.model_hash, build(self._engine, props.build), props.context_tokens)
        store = Store(folder, name, settings.store_limit_bytes, settings.store_age_s)
        shared = store_folder.shared_name(folder)
        meter.place = f"{shared}/{name}" if shared else ""
        verdict = store_probe.decide(client, store, folder, name, props.slots, self._window)
        if verdict.speeds is not None:
            meter.begin(verdict.speeds)
        return store, verdict.off

    @property
    def _window(self) -> int:
        """The widest sliding window of the model, in tokens."""
        if self._props is None:
            return 0
        try:
            caches = model_facts.read(Path(self._props.model_path)).caches
        except (StartError, OSError):
            return 0
        return max((cache.window for cache in caches), default=0)

    def _new_client(self) -> EngineClient:
        settings = self._settings
        deadlines = Deadlines(
            first_token_s=settings.first_token_timeout_s,
            between_tokens_s=settings.between_tokens_timeout_s,
            answer_s=settings.answer_timeout_s,
        )
        rest_s = self._settings.delta_batch_ms / 1000
        return EngineClient(self.engine.base_url, self.engine.api_key, deadlines, self.pulse, rest_s)


def _answers(url: str) -> bool:
    """A dying process still takes connections for a moment after it has dropped those it had; it answers none."""
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname, parts.port), timeout=ANSWERS_S) as connection:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            return bool(connection.recv(1))
    except TimeoutError:
        return True  # busy, not gone
    except OSError:
        return False


def _nobody() -> None:
    """Nobody listens yet."""
