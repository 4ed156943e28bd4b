"""A whole Corral in real processes: the API and workers by their command lines, on a broker given to it.

Owns: the environment, the start, the addresses, the logs and the end of every process of one test's cluster.
Never: imports a part of Corral; it speaks to them as an operator and a client do.
"""

import json
import signal
import struct
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import httpx
import redis

from tests.doubles.processes import MARK, REPOSITORY, Child, base_environment, end_leftovers, python
from tests.doubles.services import free_port, wait_for

Engine = Literal["standin", "embedded"]
Settings = Mapping[str, object]

START_S = 60.0
STANDIN = "tests.doubles.standin_engine"
SOON = {"lease_lifetime_s": 3, "lease_renew_s": 0.5}  # where it matters that a dead worker is found, not after how long


def standin_command(folder: Path, name: str = "engine", **variables: object) -> Path:
    """An executable for CORRAL_LLAMA_SERVER that runs the stand-in engine with `STANDIN_<NAME>=value` set.

    `variables` are the stand-in's names without prefix, lower case: decode_tokens_per_s=50, load_s=1, ...
    The log of its requests is `<folder>/<name>.jsonl`.
    """
    values = {"log": folder / f"{name}.jsonl", **variables}
    lines = [f"export STANDIN_{key.upper()}='{value}'" for key, value in values.items()]
    script = folder / f"{name}.sh"
    # Without site packages the interpreter starts in a third of the time; the stand-in needs none.
    lines += [f"export PYTHONPATH='{REPOSITORY}'", f"exec '{sys.executable}' -S -m {STANDIN} \"$@\""]
    script.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    script.chmod(0o755)
    return script


def empty_model(folder: Path) -> Path:
    """The smallest GGUF file (no key, one tensor of eight numbers), for an engine that reads none."""
    version, tensors, keys, name = 3, 1, 0, b"w"
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, keys)
    head += struct.pack(f"<Q{len(name)}sIQIQ", len(name), name, 1, 8, 0, 0)
    path = folder / "standin.gguf"
    path.write_bytes(head.ljust(-len(head) % 32 + len(head), b"\0") + bytes(32))
    return path


class Cluster:
    """`workers` workers and `api_count` APIs, each on a port of its own unless they share `one_port`. A context
    manager; leaving it fails the test if a process is left.

    `settings` are setting names as in corral.toml (`queue_limit=2`), for every part; `standin` variables go to the
    stand-in engine of every worker. Each worker is w1, w2, ... unless added by name. `killed_at_end` ends all of them
    by kill -9, where a test looks at no shutdown.
    """

    def __init__(
        self,
        folder: Path,
        broker_url: str,
        *,
        workers: int = 2,
        slots: int = 4,
        model: Path | None = None,
        engine: Engine = "standin",
        context_tokens: int = 8192,
        settings: Settings | None = None,
        standin: Mapping[str, object] | None = None,
        api_count: int = 1,
        one_port: bool = False,
        worker_module: str = "workers.app",
        killed_at_end: bool = False,
    ) -> None:
        self.folder = folder
        self.broker_url = broker_url
        self.worker_module = worker_module
        self.last_signal = signal.SIGKILL if killed_at_end else signal.SIGTERM
        self.engine = engine
        self.first_workers = [f"w{number}" for number in range(1, workers + 1)]
        self.model = model or empty_model(folder)
        self.standin = dict(standin or {})
        self.settings: dict[str, object] = {
            "redis_url": broker_url,
            "data_dir": folder / "data",
            "log_format": "json",
            "host": "127.0.0.1",
            "model": self.model,
            "slots": slots,
            "context_tokens": context_tokens,
            "threads": 1,  # two engine threads on two cores collapse under any other load
            "drain_s": 5,
            **(settings or {}),
        }
        shared = free_port()
        self.ports = [shared if one_port else free_port() for _ in range(api_count)]
        if one_port:
            self.settings["api_workers"] = api_count
        self.mark = uuid.uuid4().hex
        self.apis: list[Child] = []
        self.workers: dict[str, Child] = {}
        self.stopped: set[str] = set()
        self.redis = redis.Redis.from_url(broker_url, decode_responses=True)
        self.http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    # --- life ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.apis = [self.start_api(number) for number in range(len(self.ports))]
            for name in self.first_workers:
                self.start_worker(name)
            self.wait_ready(len(self.first_workers))
        except BaseException:
            self._print_tails()
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._print_tails()
        left = self._end()
        if left and error is None:
            self._print_tails()
            raise AssertionError("processes were left behind:\n" + "\n".join(left))

    def _end(self) -> list[str]:
        self.http.close()
        self.redis.close()
        children = [*self.workers.values(), *self.apis]
        for child in children:
            child.send(signal.SIGCONT)
            child.send(self.last_signal)
        for child in children:
            child.stop(self.last_signal)
        return end_leftovers(self.mark)

    # --- addresses and answers ----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The address of the first API."""
        return self.urls[0]

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def status(self) -> dict[str, Any]:
        """The body of GET /v1/status."""
        answer = self.http.get("/v1/status", headers=self._key_header())
        answer.raise_for_status()
        return dict(answer.json())

    def worker_states(self) -> dict[str, str]:
        """name -> state, as the API sees the workers now."""
        infos = [worker.get("info", worker) for worker in self.status().get("workers", [])]
        return {info["name"]: info["state"] for info in infos}

    def messages(self, text: str, *, headers: Mapping[str, str] | None = None, **fields: Any) -> httpx.Response:
        """POST /v1/messages with one user text, not streamed; `fields` go over the body's."""
        body = {"model": "any", "max_tokens": 256, "messages": [{"role": "user", "content": text}], **fields}
        return self.http.post("/v1/messages", json=body, headers={**self._key_header(), **(headers or {})})

    def start_api(self, number: int) -> Child:
        """Start an API on its own port and return at once."""
        changes = {"port": self.ports[number], "api_name": f"api-{number}"}
        return self._start("api.app", f"api{number}", changes)

    # --- workers ------------------------------------------------------------------------------------------------

    def start_worker(self, name: str, *, settings: Settings | None = None, **standin: object) -> Child:
        """Start a worker and return at once; `settings` and stand-in variables go over the cluster's."""
        command = "embedded"
        if self.engine == "standin":
            command = str(standin_command(self.folder, name, **{**self.standin, **standin}))
        changes = {"worker_name": name, "llama_server": command, **(settings or {})}
        self.workers[name] = self._start(self.worker_module, name, changes)
        self.stopped.discard(name)
        return self.workers[name]

    def add_worker(self, name: str, *, settings: Settings | None = None, **standin: object) -> Child:
        """Start a worker and wait until the API sees it ready."""
        child = self.start_worker(name, settings=settings, **standin)
        self.wait_worker(name, "ready")
        return child

    def stop_worker(self, name: str, number: int = signal.SIGTERM, timeout_s: float = 20) -> int:
        """Stop a worker by a signal and wait for its end. Returns its exit status."""
        self.stopped.add(name)
        return self.workers[name].stop(number, timeout_s)

    def kill_worker(self, name: str) -> None:
        """kill -9 of the worker's process alone: what it started must notice by itself."""
        self.stop_worker(name, signal.SIGKILL)

    # --- waiting ------------------------------------------------------------------------------------------------

    def wait_ready(self, workers: int, timeout_s: float = START_S) -> None:
        """Until every API says ready and `workers` workers are ready. Raises AssertionError."""
        for url in self.urls:
            wait_for(lambda url=url: self._says_ready(url), f"{url}/ready", timeout_s)  # type: ignore[misc]
        wait_for(lambda: self._ready_count() >= workers, f"{workers} ready workers", timeout_s)

    def wait_worker(self, name: str, state: str, timeout_s: float = START_S) -> None:
        """Until the API sees worker `name` in `state`; "gone": not at all."""
        wait_for(lambda: self.worker_states().get(name, "gone") == state, f"worker {name} to be {state}", timeout_s)

    def wait_log(self, fits: Callable[[dict[str, Any]], bool], timeout_s: float = 10) -> dict[str, Any]:
        """The first JSON line of any API's log that `fits`."""
        return wait_for(lambda: next(filter(fits, self.log_lines()), None), "a log line", timeout_s)

    # --- logs ---------------------------------------------------------------------------------------------------

    def api_log(self, number: int = 0) -> str:
        return self.apis[number].log.read_text(errors="replace")

    def worker_log(self, name: str) -> str:
        return self.workers[name].log.read_text(errors="replace")

    def log_lines(self) -> list[dict[str, Any]]:
        """Every line of the APIs' logs that is a JSON object."""
        return [line for api in self.apis for line in json_lines(api.log)]

    def worker_log_lines(self, name: str) -> list[dict[str, Any]]:
        return json_lines(self.workers[name].log)

    def engine_requests(self, name: str) -> list[dict[str, Any]]:
        """What the stand-in engine of worker `name` logged: one line per request."""
        return json_lines(self.folder / f"{name}.jsonl")

    # --- inside -------------------------------------------------------------------------------------------------

    def _start(self, module: str, name: str, changes: Settings) -> Child:
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        values = {**self.settings, **changes}
        environment = base_environment(self.folder) | {MARK: self.mark}
        environment |= {f"CORRAL_{key.upper()}": str(value) for key, value in values.items()}
        command = [*self._on_its_host(name), *self._command(module, name)]
        return Child(command, self.folder / f"{name}.log", environment, self.folder)

    def _on_its_host(self, _name: str) -> list[str]:
        """What the command of a part begins with."""
        return []

    def _command(self, module: str, _name: str) -> list[str]:
        """What runs a part."""
        return python("-m", module)

    def _key_header(self) -> dict[str, str]:
        first = str(self.settings.get("api_keys", "")).split(",")[0]
        return {"x-api-key": first.partition(":")[2]} if first else {}

    def _says_ready(self, url: str) -> bool:
        self._all_alive()
        try:
            return self.http.get(f"{url}/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def _ready_count(self) -> int:
        self._all_alive()
        return list(self.worker_states().values()).count("ready")

    def _all_alive(self) -> None:
        for name, child in [*((api.log.stem, api) for api in self.apis), *self.workers.items()]:
            if name not in self.stopped and not child.alive:
                raise AssertionError(f"{' '.join(child.command)} ended early with {child.process.returncode}")

    def _print_tails(self) -> None:
        for child in [*self.apis, *self.workers.values()]:
            sys.stdout.write(f"\n--- {child.log.name} ---\n{child.tail()}\n")


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects among the lines of a file; none if there is no file yet."""
    if not path.exists():
        return []
    return [line for line in map(_json_object, path.read_text(errors="replace").splitlines()) if line is not None]


def _json_object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
