"""One engine process without Corral: the stand-in or the real one, behind the same handle.

Owns: its start, its address, its end.
Never: a worker.
"""

import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import httpx

from tests.doubles.cluster import standin_command
from tests.doubles.processes import Child, base_environment, python
from tests.doubles.services import free_port, wait_for


class EngineProcess:
    """A running engine; `http` is a client with its key. A context manager that ends it.

    Slots are saved to `store`, if there is one.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        *,
        kind: Literal["standin", "embedded"] = "embedded",
        slots: int = 2,
        context_tokens: int = 8192,
        key: str = "engine-key",
        standin: Mapping[str, object] | None = None,
        store: Path | None = None,
    ) -> None:
        self.folder = folder
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        shape = [str(slots), str(context_tokens)]
        if kind == "standin":
            flags = ["-m", str(model), "--port", str(port), "-np", shape[0], "-c", str(slots * context_tokens)]
            flags += ["--slot-save-path", str(store)] if store else []
            command = [str(standin_command(folder, "engine", **(standin or {}))), *flags]
        else:
            command = python("-m", "tests.doubles.embedded_engine", str(model), str(port), *shape)
            command += [str(store)] if store else []
        environment = {**base_environment(folder), "LLAMA_API_KEY": key}
        # Both engines close kept connections without a word; a test of something else must not meet that.
        limits = httpx.Limits(max_keepalive_connections=0)
        headers = {"x-api-key": key}
        self.http = httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=60, limits=limits)
        self.child = Child(command, folder / "engine.log", environment, folder)

    def __enter__(self) -> Self:
        wait_for(self.healthy, f"the engine; its log: {self.child.log}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()
        self.child.stop(signal.SIGKILL)

    def healthy(self) -> bool:
        """Does it serve? Raises AssertionError once its process has ended."""
        if not self.child.alive:
            raise AssertionError(f"the engine ended early:\n{self.child.tail()}")
        try:
            return self.http.get("/health").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False
