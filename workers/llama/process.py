"""The engine as a process that is kept alive.

Owns: one llama-server and everything about its life: start, health, restart, end, its port, its key, its log.
Never: sends it a request to generate; knows slots, jobs or conversations.

    stopped -> starting -> ready -> failing -> starting -> ...      any -> stopping -> stopped
                             |  `-> sick ----> starting              failed too often in a row
                  `-> failing -> stopped     only at the first start: a wrong flag or file does not mend itself

One supervisor thread does it all. It also starts the engine, because the engine dies with the thread that started it
(see infra.guard): this thread lives as long as the engine should.
"""

import contextlib
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from infra import guard
from infra.config import Settings
from infra.errors import StartError
from infra.model_setting import HfModel
from infra.network import free_port
from infra.observability import metrics
from scheduler.policy import restarting
from workers.llama import command, engine_log, memory, pid_file
from workers.llama.command import Engine
from workers.llama.life import EngineState, Life
from workers.llama.model import ModelProfile
from workers.llama.probe import EngineProps, Health, NotOursError, Probe

__all__ = ["EngineProcess", "EngineProps", "EngineState"]

LOADING_PROBE_S = 0.2
HEALTH_PROBE_S = 1.0
# The engine answers /health beside its work, so only one that hangs is silent for this long.
SILENCE_LIMIT_S = 60.0
# Between choosing a free port and taking it, somebody else may take it.
PORT_ATTEMPTS = 5
DEFAULT_GRACE_S = 5.0

log = structlog.get_logger()


class EngineProcess:
    """Keeps one engine running. Started once; every public method and property may be used from any thread."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        model_path: Path | HfModel,
        profile: ModelProfile,
        on_change: Callable[[EngineState], None],
    ) -> None:
        """`on_change` is called from the supervisor thread after each change. While it runs nobody watches the
        engine, so it must end by itself, as every question to the engine does."""
        self._settings, self._engine = settings, engine
        self._model_path, self._profile = model_path, profile
        self._on_change = on_change
        self.api_key = secrets.token_urlsafe(32)
        self.log_path = settings.data_dir / "logs" / f"engine-{settings.worker_name}.log"
        self._pid_path = settings.data_dir / "run" / f"engine-{settings.worker_name}.json"
        self._changed = threading.Condition()
        self._state = self._announced = EngineState.STOPPED
        self._reason, self._over = "", False
        self._port, self._pid, self._log_at_ready = 0, 0, 0
        self._process: subprocess.Popen[bytes] | None = None  # until it is about to be reaped
        self._verdict: Life | None = None
        self._props: EngineProps | None = None
        self._stop = threading.Event()
        self._grace_s = DEFAULT_GRACE_S
        self._wake, self._waker = os.pipe()
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def reason(self) -> str:
        """Why it failed last, in one line; empty when it is well."""
        return self._reason

    @property
    def base_url(self) -> str:
        """Changes with each restart."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """0 while there is no process."""
        return self._pid

    @property
    def props(self) -> EngineProps:
        """What the engine says about itself. Raises StartError before it was ready for the first time."""
        if self._props is None:
            raise StartError("engine", "it has not been ready yet")
        return self._props

    def rss_bytes(self) -> int:
        """Memory of the engine's process that is in RAM; 0 while there is none."""
        return memory.resident_bytes(self._pid)

    def want_of_memory(self) -> str:
        """What the engine has said lately, since it was ready, of memory that is short; empty when nothing."""
        return engine_log.want_of_memory(engine_log.since(self.log_path, self._log_at_ready))

    def condemn(self, reason: str, *, planned: bool = False) -> None:
        """End this life of a ready engine at once; it is started again as after a crash, or, when that was `planned`,
        without a pause, and no failure is counted."""
        with self._changed:
            if self._process is not None and self._state is EngineState.READY and self._verdict is None:
                self._verdict = Life(reason, condemned=not planned, planned=planned)
                guard.kill(self._process)

    def start(self) -> None:
        """Starts the supervisor, which starts the engine; returns at once.

        Raises ConfigError for flags that Corral owns, StartError when the worker's name is in use.
        """
        self._command(port=0)
        pid_file.clear(self._pid_path)
        self._thread = threading.Thread(target=self._supervise, name="engine-supervisor", daemon=True)
        self._thread.start()

    def wait_ready(self, timeout_s: float) -> EngineProps:
        """The engine's properties once it is ready and `on_change` has been told so.

        Raises StartError with the reason when its first start fails, or takes longer than `timeout_s`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._announced is EngineState.READY, timeout_s)
            if self._over:
                raise StartError("engine", self._reason or "it was stopped")
            if self._announced is EngineState.READY:
                return self.props
        raise StartError("engine", self._too_slow(timeout_s))

    def stop(self, grace_s: float = DEFAULT_GRACE_S) -> None:
        """Ends the engine, by force after `grace_s`, and the supervisor. Idempotent; returns when both are gone."""
        with self._changed:
            self._grace_s = grace_s
            if not self._stop.is_set():
                self._stop.set()
                os.write(self._waker, b"x")
        if self._thread is not None:
            self._thread.join()

    def __del__(self) -> None:
        os.close(self._wake)
        os.close(self._waker)

    def _supervise(self) -> None:
        try:
            self._keep_running()
        # Last line of defence: without it the worker would wait for a supervisor that is gone.
        except Exception as error:
            log.exception("engine.supervisor_failed")
            self._reason = f"its supervisor failed: {error}"
        with self._changed:
            self._over = True
        self._change(EngineState.STOPPED)

    def _keep_running(self) -> None:
        failures, ever_ready = 0, False
        while not self._stop.is_set():
            life = self._live_on_a_free_port()
            ever_ready = ever_ready or life.ready_s is not None
            if self._stop.is_set():
                return
            if life.planned:
                self._change(EngineState.STARTING)  # at once: nobody is to speak to the one that has gone
                continue
            failures = restarting.row(failures, life.ready_s, seen_late=life.condemned)
            pause_s = self._failed(failures, life.reason)
            if not ever_ready:
                return
            self._stop.wait(pause_s)

    def _failed(self, failures: int, reason: str) -> float:
        """Says so; returns how long to rest."""
        metrics.ENGINE_FAILURES.inc()
        after = self._settings.sick_after
        pause_s = restarting.pause_s(failures, after, memory=engine_log.short_of_memory(reason))
        if restarting.sick(failures, after):
            often = f"its engine failed {failures} times in a row and is tried again in {pause_s:g} s; the last time: "
            self._change(EngineState.SICK, often + reason)
        else:
            self._change(EngineState.FAILING, reason)
        return pause_s

    def _live_on_a_free_port(self) -> Life:
        for _ in range(PORT_ATTEMPTS):
            life = self._live(free_port())
            if not life.port_taken:
                break
        return life

    def _live(self, port: int) -> Life:
        """From the start of the process to its end, whichever way it ends."""
        try:
            log_start = engine_log.size(self.log_path)
            environment = command.environment(self._settings, self.api_key, os.environ)
            process = guard.spawn(self._command(port), env=environment, log_path=self.log_path)
        except OSError as error:
            return Life(f"{error.filename or self._settings.data_dir}: {error.strerror}")
        with self._changed:
            self._port, self._pid, self._process, self._verdict = port, process.pid, process, None
        # The note is for the rare case that the bond to this thread fails; a full disk must not keep the engine down.
        with contextlib.suppress(OSError):
            pid_file.write(self._pid_path, process.pid)
        self._change(EngineState.STARTING)
        with Probe(port, self.api_key) as probe:
            life = self._load(process, probe)
            if life is None:
                ready_at, self._log_at_ready = time.monotonic(), engine_log.end(self.log_path)
                self._change(EngineState.READY)
                life = replace(self._watch(process, probe), ready_s=time.monotonic() - ready_at)
        return self._bury(process, life, log_start)

    def _load(self, process: subprocess.Popen[bytes], probe: Probe) -> Life | None:
        """None when the engine is ready, else why it is not."""
        limit_s = self._settings.engine_start_timeout_s
        deadline = time.monotonic() + limit_s
        while not self._stop.is_set() and time.monotonic() < deadline:
            if guard.wait_for_exit(process, LOADING_PROBE_S, wake=self._wake):
                return Life("")
            try:
                props = probe.props() if probe.health() is Health.OK else None
            except NotOursError:
                return Life("another server took the engine's port", port_taken=True)
            if props is not None:
                self._props = replace(props, build=command.build(self._engine, props.build))
                return None
        return Life(self._too_slow(limit_s))

    def _watch(self, process: subprocess.Popen[bytes], probe: Probe) -> Life:
        heard = time.monotonic()
        while not self._stop.is_set():
            if guard.wait_for_exit(process, HEALTH_PROBE_S, wake=self._wake):
                return Life("")
            if probe.health() is Health.OK:
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_LIMIT_S:
                return Life(f"it did not answer for {SILENCE_LIMIT_S:g} s and was restarted", condemned=True)
        return Life("")

    def _bury(self, process: subprocess.Popen[bytes], life: Life, log_start: int) -> Life:
        if self._stop.is_set():
            self._change(EngineState.STOPPING)
        with self._changed:
            self._process, verdict = None, self._verdict
        guard.stop(process, self._grace_s if self._stop.is_set() else 0)
        self._pid = 0
        pid_file.remove(self._pid_path)
        if verdict is not None:
            return replace(verdict, ready_s=life.ready_s)
        if life.reason:
            return life
        text = engine_log.since(self.log_path, log_start)
        taken = life.ready_s is None and engine_log.PORT_TAKEN.search(text) is not None
        return replace(life, reason=engine_log.reason(text, process.returncode), port_taken=taken)

    def _change(self, state: EngineState, reason: str = "") -> None:
        if state is not self._state:
            if state in (EngineState.FAILING, EngineState.SICK, EngineState.READY):
                self._reason = reason
            self._state = state
            self._tell(state, reason)
        with self._changed:
            self._announced = state
            self._changed.notify_all()

    def _tell(self, state: EngineState, reason: str) -> None:
        write = log.warning if state in (EngineState.FAILING, EngineState.SICK) else log.info
        name = self._settings.worker_name
        write("engine.state", worker=name, state=state, pid=self._pid, port=self._port, reason=reason)
        try:
            self._on_change(state)
        # A listener's mistake must not end the thread that the engine hangs on.
        except Exception:
            log.exception("engine.listener_failed", state=state)

    def _command(self, port: int) -> list[str]:
        return command.command(self._engine, self._settings, self._model_path, port, self._profile)

    def _too_slow(self, limit_s: float) -> str:
        return (
            f"the model did not load within {limit_s:g} s; see {self.log_path}, or raise CORRAL_ENGINE_START_TIMEOUT_S"
        )
