"""Clients of a cluster under test: answers in threads, streams that are hung up, and looks behind the line.

Owns: how a test asks, leaves, and reads what the broker and the engines hold.
Never: starts a process.
"""

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.doubles.cluster import Cluster
from tests.doubles.services import wait_for

LEVELS = range(10)
SEPARATOR = "\x06\x16"


def headers(agent: str, level: int | None = None) -> dict[str, str]:
    """Who asks: each agent has a conversation of its own."""
    found = {"x-claude-code-session-id": f"session-{agent}", "x-agent-id": agent}
    return found if level is None else found | {"x-priority": str(level)}


def body(text: str, *, stream: bool = True, max_tokens: int = 4096) -> dict[str, Any]:
    return {
        "model": "any",
        "max_tokens": max_tokens,
        "stream": stream,
        "messages": [{"role": "user", "content": text}],
    }


class Asking:
    """Requests of many agents at once, each in a thread; a context manager that waits for all of them."""

    def __init__(self, cluster: Cluster, threads: int = 64, timeout_s: float = 60) -> None:
        self.cluster = cluster
        self.pool = ThreadPoolExecutor(threads)
        limits = httpx.Limits(max_connections=threads + 8)
        self.http = httpx.Client(base_url=cluster.url, timeout=timeout_s, trust_env=False, limits=limits)

    def __enter__(self) -> "Asking":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(wait=True)
        self.http.close()

    def ask(self, text: str, agent: str, level: int | None = None) -> "Future[httpx.Response]":
        """A whole answer."""
        sent = {"json": body(text, stream=False), "headers": headers(agent, level)}
        return self.pool.submit(lambda: self.http.post("/v1/messages", **sent))  # type: ignore[arg-type]

    def stream(self, text: str, agent: str) -> "Stream":
        return Stream(self.http, self.pool, text, agent)


class Stream:
    """A streamed answer read in a thread."""

    def __init__(self, http: httpx.Client, pool: ThreadPoolExecutor, text: str, agent: str) -> None:
        self.first_text = threading.Event()
        self.events: list[dict[str, Any]] = []
        self.answer = pool.submit(self._read, http, text, agent)

    def _read(self, http: httpx.Client, text: str, agent: str) -> "Stream":
        try:
            with http.stream("POST", "/v1/messages", json=body(text), headers=headers(agent)) as response:
                if response.status_code != httpx.codes.OK:
                    self.events.append(json.loads(response.read()))
                    return self
                for event in events_of(response):
                    self.events.append(event)
                    if event["type"] == "content_block_delta":
                        self.first_text.set()
        finally:
            self.first_text.set()
        return self

    @property
    def text(self) -> str:
        deltas = [event["delta"] for event in self.events if event["type"] == "content_block_delta"]
        return "".join(delta.get("text", "") for delta in deltas)

    @property
    def last(self) -> str:
        """Type of the last event; of an error its own type."""
        event = self.events[-1]
        return str(event["error"]["type"] if event["type"] == "error" else event["type"])


def events_of(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


@contextmanager
def hung_up(cluster: Cluster, text: str, agent: str, *, after_first_text: bool) -> Iterator[None]:
    """A streamed request whose client hangs up when the block is left. Inside, it waits or is being answered."""
    address = urlsplit(cluster.url)
    sent = json.dumps(body(text)).encode()
    lines = [f"POST /v1/messages HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-length: {len(sent)}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in headers(agent).items()]
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall("".join([*lines, "\r\n"]).encode() + sent)
        received = b""
        while after_first_text and b"content_block_delta" not in received:
            came = connection.recv(65536)
            assert came, received.decode()
            received += came
        yield


def line(cluster: Cluster, worker: str = "w1") -> int:
    return int(cluster.redis.zcard(f"corral:line:{worker}"))


def tickets(cluster: Cluster, worker: str = "w1") -> list[int]:
    """Celery's tickets at each level."""
    names = [f"llm.{worker}" + (f"{SEPARATOR}{level}" if level else "") for level in LEVELS]
    return [int(cluster.redis.llen(name)) for name in names]


def running(cluster: Cluster, worker: str = "w1") -> int:
    return int(cluster.redis.hlen(f"corral:running:{worker}"))


def wait_line(cluster: Cluster, count: int, worker: str = "w1") -> None:
    wait_for(lambda: line(cluster, worker) == count, f"{count} jobs in the line of {worker}")


def wait_running(cluster: Cluster, count: int, worker: str = "w1") -> None:
    wait_for(lambda: running(cluster, worker) == count, f"{count} jobs running on {worker}")


def outcomes(cluster: Cluster, worker: str = "w1") -> list[str]:
    """How the engine's generations ended, in their order."""
    return [entry["outcome"] for entry in cluster.engine_requests(worker) if entry["event"] == "request"]


def engine_pid(cluster: Cluster, worker: str = "w1") -> int:
    return int([entry for entry in cluster.engine_requests(worker) if entry["event"] == "start"][-1]["pid"])


def last(seconds: float) -> None:
    """How long a trouble lasts is its subject; nothing is measured by it."""
    subprocess.run(["sleep", str(max(0.0, seconds))], check=True)


def hurry(cluster: Cluster, worker: str = "w1") -> None:
    """What the engine of `worker` is saying now is said to its end at once."""
    os.kill(engine_pid(cluster, worker), signal.SIGUSR2)


def hurry_on(cluster: Cluster, worker: str, streams: "Sequence[Stream]") -> None:
    """`worker` is hurried until these answers have ended, some of which may have to wait for a slot there."""

    def ended() -> bool:
        hurry(cluster, worker)
        return all(stream.answer.done() for stream in streams)

    wait_for(ended, f"the answers of {worker} to end", 60)


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == httpx.codes.OK, answer.text
    return "".join(block["text"] for block in answer.json()["content"])


def words(count: int) -> str:
    return " ".join(f"w{number}" for number in range(1, count + 1))
