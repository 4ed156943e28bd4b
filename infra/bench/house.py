"""A Corral to measure: one that the bench starts, or one that runs.

Owns: the processes it started and their end, and finding the engine behind a worker of this machine.
Never: imports a part; each is run by its command line, as `corral up` does.
"""

import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any, NamedTuple

import httpx
import psutil

from infra import config, guard, model_setting
from infra.cli import broker as valkey
from infra.cli.parts import API, WORKER, environment
from infra.config import Settings
from infra.errors import ConfigError, StartError

READY_LIMIT_S = 120.0
POLL_S = 0.1
GRACE_S = 10.0
LOG_TAIL = 1200  # letters


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine to ask directly. `pid` is 0 when it was given and not found."""

    url: str
    key: str
    pid: int = 0

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The engine stands still inside the block, so that what is asked of it waits. Its worker ends one that is
        silent for longer than `hang_s`: set that longer than the block takes. Raises StartError when it was ended."""
        process = psutil.Process(self.pid)
        process.suspend()
        try:
            yield
        finally:
            try:
                process.resume()
            except psutil.NoSuchProcess:
                raise StartError("bench", "the engine that stood still was ended meanwhile; is hang_s long?") from None


@dataclass(frozen=True, slots=True)
class House:
    """A running Corral. `logs` and `api_pid` are there only when the bench started it; `settings` are then its own."""

    url: str
    key: str
    redis_url: str
    engines: tuple[Engine, ...]
    settings: Mapping[str, Any]
    slots: int
    api_pid: int = 0
    logs: Path | None = None

    @property
    def engine(self) -> Engine:
        """The only engine. Raises StartError when there is none or more than one."""
        if len(self.engines) != 1:
            raise StartError("bench", f"needs exactly one engine to compare with, not {len(self.engines)}")
        return self.engines[0]


@contextmanager
def started(model: str, workers: int = 1, **changes: Any) -> Iterator[House]:
    """A broker, an API and workers w1, w2, .. on free ports, with `changes` over the default settings; ended at last.

    Settings come from nowhere else, so that figures do not depend on a file or a variable of this machine. Raises
    StartError when there is no such model, or when a part does not come up; the end of its log is then told.
    """
    model_setting.read(model)
    with tempfile.TemporaryDirectory(prefix="corral-bench-", ignore_cleanup_errors=True) as name, ExitStack() as parts:
        folder = Path(name)
        logs = folder / "logs"
        broker_port, port = free_port(), free_port()
        redis_url = valkey.url("127.0.0.1", broker_port, "")
        chosen = {"port": port, "model": model, "data_dir": folder, "log_format": "json", "redis_url": redis_url}
        settings = Settings(**(chosen | changes))
        command = valkey.command(folder / "broker", "127.0.0.1", broker_port, "")
        broker = parts.enter_context(_part(command, logs, valkey.MEMORY | os.environ))
        valkey.wait_until_answers(redis_url, lambda: _alive(broker), time.sleep)
        api = parts.enter_context(_part(list(API), logs, environment(settings)))
        staff = [
            parts.enter_context(_part(list(WORKER), logs, environment(settings, worker_name=f"w{number}")))
            for number in range(1, workers + 1)
        ]
        url = f"http://127.0.0.1:{port}"
        ready = _wait_ready(url, (api, *staff), workers)
        yield House(
            url=url,
            key="",
            redis_url=redis_url,
            engines=tuple(_engine(info["engine_pid"]) for info in ready),
            settings=chosen | changes,
            slots=sum(len(info["slots"]) for info in ready),
            api_pid=api.process.pid,
            logs=logs,
        )


def running(url: str, key: str, redis_url: str, engine: Engine | None) -> House:
    """A Corral that runs. Its engine is found by itself when it runs on this machine under this user.

    Raises ConfigError when it does not answer, or not with a status.
    """
    try:
        workers = _status(url, key)["workers"]
    except httpx.HTTPStatusError as error:
        raise ConfigError(
            f"{url}: tells no status ({error.response.status_code}); is it a Corral, --key its key?"
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError) as error:
        raise ConfigError(f"{url}: no Corral answers there ({error}); is it started?") from None
    engines = (engine,) if engine else tuple(_engine(info["engine_pid"]) for info in workers)
    return House(url, key, redis_url, engines, {}, sum(len(info["slots"]) for info in workers))


def free_port() -> int:
    """A port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rss_bytes(pid: int) -> int:
    """Memory of a process that is in RAM."""
    return int(psutil.Process(pid).memory_info().rss)


def log_of(command: list[str]) -> str:
    """The file name of a part's log."""
    return f"{Path(command[0]).name}{''.join(command[1:3]).replace('/', '-')}.log"


class _Part(NamedTuple):
    process: Popen[bytes]
    log: Path


@contextmanager
def _part(command: list[str], logs: Path, environ: Mapping[str, str]) -> Iterator[_Part]:
    log = logs / log_of(command)
    process = guard.spawn(command, env=dict(environ), log_path=log)
    try:
        yield _Part(process, log)
    finally:
        guard.stop(process, GRACE_S)


def _alive(part: _Part) -> None:
    if part.process.poll() is not None:
        tail = part.log.read_text(errors="replace")[-LOG_TAIL:].strip()
        raise StartError("bench", f"a part ended with {part.process.returncode}:\n{tail}")


def _wait_ready(url: str, parts: tuple[_Part, ...], count: int) -> list[dict[str, Any]]:
    limit_s = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < limit_s:
        for part in parts:
            _alive(part)
        try:
            workers: list[dict[str, Any]] = _status(url, "")["workers"]
        except httpx.HTTPError:
            workers = []
        if len(workers) == count and all(worker["state"] == "ready" for worker in workers):
            return workers
        time.sleep(POLL_S)
    raise StartError("bench", f"not all workers were ready within {READY_LIMIT_S:.0f} s")


def _status(url: str, key: str) -> dict[str, Any]:
    headers = {"x-api-key": key} if key else {}
    answer = httpx.get(f"{url}/v1/status", headers=headers, timeout=5, trust_env=False)
    answer.raise_for_status()
    status: dict[str, Any] = answer.json()
    return status


def _engine(pid: int) -> Engine:
    """Address and key of an engine of this machine, from its own command line and environment. Raises StartError."""
    try:
        process = psutil.Process(pid)
        command, environ = process.cmdline(), process.environ()
        port = command[command.index("--port") + 1]
    except (psutil.Error, ValueError, IndexError):
        raise StartError(
            "bench", f"cannot look into the engine, process {pid}; give --engine and --engine-key"
        ) from None
    return Engine(f"http://127.0.0.1:{port}", environ.get("LLAMA_API_KEY", ""), pid)


def settings_line(house: House) -> str:
    """The settings that the bench chose, as variables."""
    hidden = {"port", "redis_url", "data_dir", "log_format"}
    return " ".join(f"{config.PREFIX}{k.upper()}={v}" for k, v in house.settings.items() if k not in hidden)
