"""A whole Corral whose parts are started again when they die, as an operator's supervisor would.

Owns: the broker that keeps its data, the APIs and workers, Flower, and the thread that starts them again.
Never: a fault, a judgement.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil
import redis

from tests.chaos.hosts import Hosts
from tests.doubles.broker import Broker
from tests.doubles.cluster import Cluster, Settings
from tests.doubles.processes import Child, marked
from tests.doubles.proxy import Proxy
from tests.doubles.services import free_port, wait_for

TEND_S = 0.1
RESTART_S = 0.5  # a dead part stays away for so long at least
WHOLE_S = 90.0


class House(Cluster):
    """A cluster that is looked after. `broker` is its own; with `flower`, Flower runs too; one that is `cuttable` has
    a network between each worker or API and the broker, or each worker on a host of its own."""

    def __init__(
        self,
        folder: Path,
        broker: Broker,
        *,
        flower: bool = False,
        cuttable: bool = False,
        hosts: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(folder, broker.url, **options)
        self.broker = broker
        self.networks: dict[str, Proxy] = {}
        self.hosts = Hosts(self.first_workers) if hosts else None
        self._cuttable = cuttable
        self._wires = ExitStack()
        self.flower: Child | None = None
        self._wants_flower = flower
        self._died_s: dict[str, float] = {}
        self._stopping = threading.Event()
        self._tending = threading.Thread(target=self._tend, name="supervisor")
        self.trouble: list[str] = []

    def __enter__(self) -> Self:
        if self.hosts is not None:
            self._wires.enter_context(self.hosts)
        for name in self._behind_a_network():
            self.networks[name] = self._wires.enter_context(Proxy(self.broker.port))
        super().__enter__()
        if self._wants_flower:
            self.flower = self._start_flower()
        self._tending.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rest()
        super().__exit__(kind, error, trace)

    def rest(self) -> None:
        """Look after nothing any more."""
        self._stopping.set()
        if self._tending.is_alive():
            self._tending.join()
        if self.flower is not None:
            self.flower.stop()

    # --- what can be hit ------------------------------------------------------------------------------------------

    def engine_of(self, worker: str) -> psutil.Process | None:
        """The engine of a worker of this house; None while there is none."""
        try:
            below = psutil.Process(self.workers[worker].pid).children(recursive=True)
            return next((process for process in below if _is_engine(process)), None)
        except psutil.Error:
            return None

    def ready(self) -> bool:
        """Whether every part serves now, and the engines that the API knows are those that run."""
        try:
            workers = {worker["name"]: worker for worker in self.status()["workers"]}
        except httpx.HTTPError:
            return False
        serving = all(self._serves(name, workers.get(name, {})) for name in self.first_workers)
        return serving and all(map(self._says_ready, self.urls))

    def wait_whole(self, timeout_s: float = WHOLE_S) -> None:
        """Until every part serves again. Raises AssertionError."""
        wait_for(self.ready, f"every part to serve again; last states {self._states()}", timeout_s)

    def census(self) -> dict[str, tuple[int, int, int]]:
        """Part -> threads, file handles and resident bytes of its process; the broker's and the engines' too."""
        counted = {}
        for name, child in self._children().items():
            process = psutil.Process(child.pid)
            counted[name] = (process.num_threads(), process.num_fds(), process.memory_info().rss)
        return counted

    def keys(self) -> list[str]:
        """The name of every key in the broker."""
        return sorted(str(name) for name in self.redis.scan_iter(count=1000))

    def processes(self) -> list[str]:
        """The command line of every living process that the house has started."""
        return sorted(" ".join(process.cmdline()[:4]) for process in marked(self.mark) if _lives(process))

    # --- inside ---------------------------------------------------------------------------------------------------

    def _serves(self, name: str, seen: Mapping[str, Any]) -> bool:
        engine = self.engine_of(name)
        return engine is not None and (seen.get("state"), seen.get("engine_pid")) == ("ready", engine.pid)

    def _states(self) -> Mapping[str, str]:
        try:
            return self.worker_states()
        except httpx.HTTPError:
            return {}

    def _children(self) -> dict[str, Child]:
        apis = {f"api{number}": api for number, api in enumerate(self.apis)}
        flower = {"flower": self.flower} if self.flower else {}
        broker = {"broker": self.broker.child} if self.broker.child else {}
        return {**apis, **{name: self.workers[name] for name in self.first_workers}, **flower, **broker}

    def _tend(self) -> None:
        while not self._stopping.wait(TEND_S):
            for name, child in self._children().items():
                try:
                    self._look_after(name, child)
                except (AssertionError, OSError, redis.RedisError) as error:
                    self.trouble.append(f"{name}: {error}")

    def _look_after(self, name: str, child: Child) -> None:
        if child.alive:
            self._died_s.pop(name, None)
        elif time.monotonic() - self._died_s.setdefault(name, time.monotonic()) >= RESTART_S:
            self._starter(name)()

    def _starter(self, name: str) -> Callable[[], object]:
        if name == "broker":
            return self.broker.start
        if name == "flower":
            return lambda: setattr(self, "flower", self._start_flower())
        if name in self.workers:
            return lambda: self.start_worker(name)
        number = int(name.removeprefix("api"))
        return lambda: self.apis.__setitem__(number, self.start_api(number))

    def _start_flower(self) -> Child:
        return self._start("infra.flower_app", "flower", {"flower_port": free_port()})

    def _all_alive(self) -> None:
        """A part that is down is no trouble here: it is started again."""

    def _start(self, module: str, name: str, changes: Settings) -> Child:
        return super()._start(module, name, {**self._wired(name), **changes})

    def _behind_a_network(self) -> list[str]:
        if not self._cuttable:
            return []
        return [*([] if self.hosts else self.first_workers), *(f"api{number}" for number in range(len(self.ports)))]

    def _on_its_host(self, name: str) -> list[str]:
        return self.hosts.command(name) if self.hosts is not None and name in self.first_workers else []

    def _wired(self, name: str) -> Settings:
        if self.hosts is not None and name in self.first_workers:
            return {"redis_url": f"redis://{self.hosts.near(name)}:{self.broker.port}/0"}
        return {"redis_url": self.networks[name].url} if name in self.networks else {}

    def _end(self) -> list[str]:
        if self.broker.child is not None:
            self.broker.child.send(signal.SIGCONT)
        try:
            return super()._end()
        finally:
            self._wires.close()


def _is_engine(process: psutil.Process) -> bool:
    words = " ".join(process.cmdline())
    return "standin_engine" in words or "embedded" in words


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
