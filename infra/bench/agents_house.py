"""The houses and engines of the arms: started one at a time, so that an arm has the machine to itself.

Owns: Corral's own engine commands as the commands of the engines that are asked directly, their start and end, and the
size of a base in tokens.
Never: two arms alive at once; on a GPU they would not fit.

The engines asked directly run Corral's own command: same model, slots, window, threads and flags, so both sides have
the same memory for the same work. Only what Corral alone uses, the folder of saved slots, is left out.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import Popen

import httpx
import psutil

from infra import guard
from infra.bench import agents_bodies as bodies
from infra.bench import house as houses
from infra.bench.agents_session import Cast, Kind, Shape, Talk
from infra.bench.asking import CHAT, MESSAGES
from infra.bench.house import GRACE_S, POLL_S, READY_LIMIT_S, Engine, House
from infra.errors import StartError

CORRALS_OWN = ("--slot-save-path",)  # flags with a value
CHARS_A_TOKEN = 4.0  # a first guess, and all there is where nobody counts
COUNT_TIMEOUT_S = 30.0
COUNTING = {MESSAGES: "count_tokens", CHAT: "input_tokens"}
SIZING_STEPS = 2


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """How an engine of Corral was run."""

    arguments: tuple[str, ...]
    environ: Mapping[str, str]


def commands_of(house: House) -> list[EngineCommand]:
    """The commands of its engines, as they run. Raises StartError when one cannot be looked into."""
    try:
        processes = [psutil.Process(engine.pid) for engine in house.engines]
        return [EngineCommand(tuple(process.cmdline()), process.environ()) for process in processes]
    except psutil.Error as error:
        raise StartError("bench", f"cannot look into the engines: {error}") from None


@contextmanager
def engines(commands: Sequence[EngineCommand], more: Sequence[str]) -> Iterator[tuple[Engine, ...]]:
    """Plain engines run by these commands on free ports, with the flags `more` added; ended afterwards.

    Raises StartError, with the end of its log, for one that does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="corral-bench-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        running = []
        for number, command in enumerate(commands, 1):
            port, log = houses.free_port(), Path(name) / f"engine{number}.log"
            arguments = [*plain(command.arguments, port), *more]
            process = guard.spawn(arguments, env=command.environ, log_path=log)
            stack.callback(guard.stop, process, GRACE_S)
            key = command.environ.get("LLAMA_API_KEY", "")
            running.append((process, Engine(f"http://127.0.0.1:{port}", key, process.pid), log))
        for process, engine, log in running:
            _wait_healthy(process, engine, log)
        yield tuple(engine for _, engine, _ in running)


def plain(arguments: Sequence[str], port: int) -> list[str]:
    """An engine's command on another port, without the flags that Corral alone uses."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in CORRALS_OWN:
            next(words, None)
        elif word == "--port":
            next(words, None)
            kept += [word, str(port)]
        else:
            kept.append(word)
    return kept


def slots_of(engine: Engine) -> int:
    """Slots of an engine; 0 when it does not say, as a router before engines does not."""
    try:
        answer = httpx.get(f"{engine.url}/props", headers=_bearer(engine.key), timeout=10, trust_env=False)
        return int(answer.json()["total_slots"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return 0


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts tokens by asking who will be asked: a gateway (path MESSAGES) or an engine (path CHAT)."""

    url: str
    key: str
    path: str

    def base_tokens(self, cast: Cast, kind: Kind) -> int:
        """Tokens of system and tools, with a first message of one word; 0 when nobody counts them exactly."""
        talk = cast.talk(kind, 0)
        talk.say("go")
        return self.tokens(talk)

    def tokens(self, talk: Talk) -> int:
        """Tokens of a conversation as it stands; 0 when nobody counts them exactly."""
        body = bodies.messages_body(talk) if self.path == MESSAGES else bodies.chat_body(talk, 0)
        url = f"{self.url}{self.path}/{COUNTING[self.path]}"
        headers = bodies.headers(talk) | _bearer(self.key)
        try:
            answer = httpx.post(url, content=body, headers=headers, timeout=COUNT_TIMEOUT_S, trust_env=False).json()
            return 0 if answer.get("estimated") else int(answer["input_tokens"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return 0

    def sized(self, shape: Shape, tokens: int) -> Shape:
        """`shape` with a main base of about `tokens` tokens, at four characters a token where nobody counts."""
        sized = replace(shape, base_chars=int(tokens * CHARS_A_TOKEN))
        for _ in range(SIZING_STEPS):
            counted = self.base_tokens(Cast(sized, "sizing", "sizing"), Kind.MAIN)
            if counted:
                sized = replace(sized, base_chars=int(sized.base_chars * tokens / counted))
        return sized


def _wait_healthy(process: Popen[bytes], engine: Engine, log: Path) -> None:
    limit_s = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < limit_s:
        if process.poll() is not None:
            raise StartError(
                "bench", f"an engine ended with {process.returncode}:\n{log.read_text(errors='replace')[-600:]}"
            )
        try:
            if httpx.get(f"{engine.url}/health", timeout=5, trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(POLL_S)
    raise StartError("bench", f"an engine was not ready within {READY_LIMIT_S:.0f} s")


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}
