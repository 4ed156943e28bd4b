"""The peers as running processes before engines, and what all sides of the comparison have in common.

Owns: each peer's settings for this job, its start, the wait until it answers, and its end.
Never: asks for work. Every address is on loopback; every key is made for the run and worth nothing after it.

Why these settings: each peer is given the engine's own Anthropic endpoint, so that nobody has to translate, and, where
it has that, the policy that keeps a session on its engine. LiteLLM: `session_affinity`, new sessions to the deployment
with the fewest running requests. vllm-router: `consistent_hash`, which reads Claude Code's session header; its
`cache_aware`, tried, takes all agents with a common base for one. claude-code-router: one provider for all requests.
"""

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import httpx
import orjson

from infra import guard
from infra.bench.house import GRACE_S, POLL_S, Engine, free_port
from infra.bench.peers import packages
from infra.bench.peers.packages import Package
from infra.errors import StartError

CORRAL, LLAMA_SERVER = "Corral", "llama-server"
READY_LIMIT_S = 90.0
ROUTER_POLICIES = ("consistent_hash", "cache_aware", "sticky_least_loaded")
# Where agents outnumber slots, engines whose slots nobody pins keep prompts that lose theirs in memory, as llama-server
# does by default.
PEER_ENGINE_FLAGS = ("--cache-ram", "4096")


@dataclass(frozen=True, slots=True)
class Side:
    """Somebody who answers POST /v1/messages. `processes` are those that stand between client and engine."""

    name: str
    url: str
    key: str
    processes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """How a peer is run: its command, what it finds in its environment beside the clean one, and what is asked until
    it answers with less than 500."""

    command: list[str]
    environ: Mapping[str, str]
    health: str
    key: str


Starting = Callable[[Path, Sequence[Engine], int, Path], Started]


@dataclass(frozen=True, slots=True)
class Peer:
    """`spreads`: it can share requests out among several engines."""

    name: str
    package: Package
    starting: Starting
    spreads: bool


def peers(router_policy: str) -> tuple[Peer, ...]:
    """All peers."""

    def router(program: Path, engines: Sequence[Engine], port: int, folder: Path) -> Started:
        return _vllm_router(router_policy, program, engines, port, folder)

    return (
        Peer("LiteLLM", packages.LITELLM, _litellm, spreads=True),
        Peer("vllm-router", packages.VLLM_ROUTER, router, spreads=True),
        Peer("claude-code-router", packages.CLAUDE_CODE_ROUTER, _claude_code_router, spreads=False),
    )


@contextmanager
def opened(peer: Peer, program: Path, engines: Sequence[Engine], folder: Path) -> Iterator[Side]:
    """The peer before `engines`, started in `folder` and ended afterwards. Raises StartError with its log's end."""
    port, log = free_port(), folder / f"{peer.package.name}.log"
    folder.mkdir(parents=True, exist_ok=True)
    started = peer.starting(program, engines, port, folder)
    environ = packages.clean(os.environ) | {"HOME": str(folder), "NO_PROXY": "127.0.0.1"} | dict(started.environ)
    process = guard.spawn(started.command, env=environ, log_path=log, cwd=folder)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_answers(url + started.health, process, peer.name, log)
        yield Side(peer.name, url, started.key, (process.pid,))
    finally:
        guard.stop(process, GRACE_S)


@contextmanager
def all_opened(chosen: Mapping[Peer, Path], engines: Sequence[Engine], folder: Path) -> Iterator[list[Side]]:
    """The peers side by side before the same engines. One that does not start is left out, and stderr says why."""
    with ExitStack() as stack:
        sides = []
        for peer, program in chosen.items():
            try:
                sides.append(stack.enter_context(opened(peer, program, engines, folder_of(peer, folder))))
            except StartError as error:
                print(f"error: {error}", file=sys.stderr)
        yield sides


def folder_of(peer: Peer, folder: Path) -> Path:
    """Two floors down: LiteLLM imports from the folder two above the one that it runs in."""
    return folder / "peers" / peer.package.name


def _wait_until_answers(url: str, process: Popen[bytes], name: str, log: Path) -> None:
    limit_s = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < limit_s:
        if process.poll() is not None:
            tail = log.read_text(errors="replace")[-600:]
            raise StartError(name, f"ended with {process.returncode} before it answered:\n{tail}")
        try:
            if httpx.get(url, timeout=5, trust_env=False).status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                return
        except httpx.HTTPError:
            pass
        time.sleep(POLL_S)
    raise StartError(name, f"did not answer within {READY_LIMIT_S:.0f} s")


def _litellm(program: Path, engines: Sequence[Engine], port: int, folder: Path) -> Started:
    key, config = f"sk-{secrets.token_hex(16)}", folder / "litellm.yaml"
    models = [
        {
            "model_name": "bench",
            "litellm_params": {"model": "anthropic/bench", "api_base": engine.url, "api_key": engine.key or "none"},
        }
        for engine in engines
    ]
    routing = {"routing_strategy": "least-busy", "optional_pre_call_checks": ["session_affinity"]}
    # JSON is YAML too.
    config.write_bytes(orjson.dumps({"model_list": models, "router_settings": routing}))
    command = [
        str(program),
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--telemetry",
        "False",
    ]
    environ = {"LITELLM_MASTER_KEY": key, "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return Started(command, environ, "/health/liveliness", key)


def _vllm_router(policy: str, program: Path, engines: Sequence[Engine], port: int, _: Path) -> Started:
    key = engines[0].key
    command = [str(program), "--host", "127.0.0.1", "--port", str(port), "--policy", policy, "--log-level", "warning"]
    command += ["--worker-startup-check-interval", "1", "--prometheus-port", str(free_port())]
    command += ["--api-key", key] if key else []
    return Started([*command, "--worker-urls", *(engine.url for engine in engines)], {}, "/health", key)


def _claude_code_router(program: Path, engines: Sequence[Engine], port: int, folder: Path) -> Started:
    provider = {
        "name": "engine",
        "api_base_url": f"{engines[0].url}/v1/messages",
        "api_key": engines[0].key or "none",
        "models": ["bench"],
        "transformer": {"use": ["Anthropic"]},
    }
    config = {"LOG": False, "HOST": "127.0.0.1", "PORT": port, "NON_INTERACTIVE_MODE": True, "API_TIMEOUT_MS": 600_000}
    home = folder / ".claude-code-router"
    home.mkdir(exist_ok=True)
    everything = config | {"Providers": [provider], "Router": {"default": "engine,bench"}}
    (home / "config.json").write_bytes(orjson.dumps(everything))
    return Started(["node", str(program), "start"], {}, "/", "none")
