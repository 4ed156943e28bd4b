"""The checks of `corral doctor`, one function each.

Owns: what is looked at on this machine and the remedy for what is wrong.
Never: prints, repairs, or starts anything that stays.
"""

import platform
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path

import redis

from infra import config, machine
from infra.cli import checks, claude, console, engine
from infra.cli.config_command import without_password
from infra.config import AUTO, Settings
from infra.engine_search import GPU_BUILDS
from infra.errors import CorralError
from infra.model_setting import DEMO, HUB_PREFIX

LEAST_FREE_MEMORY_BYTES = 2 * 2**30
LEAST_NODE = 18
LEAST_BROKER = 7  # what the tests run on; older ones lack commands that the scripts use


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """What one check found; `remedy` is empty when there is nothing to do."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


Check = Callable[[Settings], Finding]


def python(_settings: Settings) -> Finding:
    system = f"{platform.system()} {platform.machine()}"
    text = f"{platform.python_version()} on {system}, corral {version('corral')}"
    if sys.platform != "linux":
        return Finding(Level.WARN, "Python", text, "only Linux is tested; elsewhere parts may outlive a killed `up`")
    return Finding(Level.OK, "Python", text)


def engine_found(settings: Settings) -> Finding:
    try:
        found = engine.find(settings)
    except CorralError as error:
        return _failed("engine", error)
    return Finding(Level.OK, "engine", "embedded (CPU only)" if found.embedded else found.path)


def graphics(settings: Settings) -> Finding:
    names = machine.card_names() or tuple(f"card {card}" for card in machine.cards())
    try:
        found = engine.find(settings)
    except CorralError:
        text = ", ".join(names) or "none found"
        return Finding(Level.WARN, "GPU", f"{text}; no engine to use one", GPU_BUILDS)
    usable = found.devices()
    if usable:
        return Finding(Level.OK, "GPU", "the engine can use " + "; ".join(usable))
    if names:
        return Finding(Level.WARN, "GPU", f"{', '.join(names)}: the engine cannot use it", GPU_BUILDS)
    return Finding(Level.WARN, "GPU", "none found; the engine works on the CPU", "fine for a try, slow for real work")


def memory(_settings: Settings) -> Finding:
    total, available = machine.memory_bytes()
    text = f"{console.size(available)} of {console.size(total)} available, {machine.cores()} cores"
    if available < LEAST_FREE_MEMORY_BYTES:
        return Finding(Level.WARN, "memory", text, "close something; even the demo model wants 2 GiB")
    return Finding(Level.OK, "memory", text)


def data_folder(settings: Settings) -> Finding:
    try:
        checks.data_dir(settings.data_dir)
    except CorralError as error:
        return _failed("data folder", error)
    free = shutil.disk_usage(settings.data_dir).free
    return Finding(Level.OK, "data folder", f"{settings.data_dir}, {console.size(free)} free")


def store(settings: Settings) -> Finding:
    folder = settings.store_folder
    if folder is None:
        return Finding(Level.OK, "store", "off: no caches are saved")
    try:
        checks.store(settings)
    except CorralError as error:  # `up` starts without it
        return _found(Level.WARN, "store", error)
    free, limit = console.size(shutil.disk_usage(folder).free), console.size(settings.store_limit_bytes)
    return Finding(Level.OK, "store", f"{folder} is writable, at most {limit}, {free} free")


def model(settings: Settings) -> Finding:
    try:
        name = checks.model(settings.model)
    except CorralError as error:
        return _failed("model", error)
    if name == DEMO:
        return Finding(Level.WARN, "model", "the demo model: proves the path only", "for work give --model PATH")
    if name.startswith(HUB_PREFIX):
        return Finding(Level.OK, "model", f"{name}; downloaded at the first start")
    return _model_fits(Path(name))


def _model_fits(path: Path) -> Finding:
    size, (total, _) = path.stat().st_size, machine.memory_bytes()
    text = f"{path}, {console.size(size)}"
    if size > total and not machine.cards():
        return Finding(Level.WARN, "model", f"{text}: larger than this machine's memory", "take a smaller quantisation")
    return Finding(Level.OK, "model", text)


def broker(settings: Settings) -> Finding:
    if not settings.redis_url:
        return Finding(Level.OK, "broker", "`corral up` starts its own; CORRAL_REDIS_URL is not set")
    shown = without_password(settings.redis_url)
    try:
        with redis.Redis.from_url(settings.redis_url, socket_timeout=3, socket_connect_timeout=3) as client:
            facts = client.info("server")
    except (redis.RedisError, OSError, ValueError) as error:
        remedy = "check CORRAL_REDIS_URL, and that the broker runs and its port is open"
        return Finding(Level.FAIL, "broker", f"{shown} does not answer: {error}", remedy)
    name = str(facts.get("server_name", "redis"))
    number = str(facts.get(f"{name}_version", facts.get("redis_version", "0")))
    if int(number.partition(".")[0]) < LEAST_BROKER:
        return Finding(Level.FAIL, "broker", f"{shown} is {name} {number}", f"take version {LEAST_BROKER} or newer")
    return Finding(Level.OK, "broker", f"{shown} is {name} {number}")


def ports(settings: Settings) -> Finding:
    try:
        checks.port(settings.host, settings.port, "API", "give `up` another --port")
        checks.port(settings.flower_host, settings.flower_port, "Flower", "give `up` another --flower-port")
    except CorralError as error:
        # A Corral that runs already is the usual reason, and no fault.
        text, _, remedy = error.message.partition("; ")
        return Finding(Level.WARN, "ports", text, remedy)
    return Finding(Level.OK, "ports", f"{settings.port} (API) and {settings.flower_port} (Flower) are free")


def doors(settings: Settings) -> Finding:
    try:
        checks.doors(settings)
    except CorralError as error:
        return _failed("access", error)
    keys = "with keys" if settings.api_keys.get_secret_value() else "without keys"
    return Finding(Level.OK, "access", f"{settings.host}, {keys}")


def weights(settings: Settings) -> Finding:
    try:
        known = config.api_keys(settings)
    except CorralError as error:
        return _failed("weights", error)
    unknown = sorted(set(settings.key_weights) - set(known))
    if unknown:
        words = f"key_weights names {_listed(unknown)}, and CORRAL_API_KEYS has no such key"
        return Finding(Level.WARN, "weights", words, "correct the name, or add the key; until then it has no effect")
    count = len(settings.key_weights) + len(settings.agent_weights)
    return Finding(Level.OK, "weights", f"{count} set" if count else "none; all share alike")


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def warm(settings: Settings) -> Finding:
    try:
        files = checks.warm(settings)
    except CorralError as error:
        return Finding(Level.FAIL, "warm", error.message.removeprefix("warm: "), "correct the setting `warm`")
    if not files:
        return Finding(Level.OK, "warm", "no files; the first agent with a system prompt and tools prefills them")
    text = "; ".join(f"{file.path.name}, about {file.about_tokens} tokens" for file in files)
    window = settings.context_tokens
    if window != AUTO and any(file.about_tokens > window for file in files):
        return Finding(Level.WARN, "warm", f"{text}: more than a window of {window}", "give a larger --context")
    return Finding(Level.OK, "warm", text)


def node(_settings: Settings) -> Finding:
    number = re.search(r"v(\d+)\.", machine.output_of("node", "--version"))
    if number is None:
        return Finding(
            Level.WARN, "Node", "not found", f"Claude Code wants Node {LEAST_NODE} or newer: https://nodejs.org"
        )
    npm = machine.output_of("npm", "--version").strip()
    text = f"{machine.output_of('node', '--version').strip()}, npm {npm or 'not found'}"
    if int(number[1]) < LEAST_NODE:
        return Finding(Level.WARN, "Node", text, f"Claude Code wants Node {LEAST_NODE} or newer: https://nodejs.org")
    return Finding(Level.OK, "Node", text)


def client(_settings: Settings) -> Finding:
    path = shutil.which("claude")
    if path is None:
        return Finding(Level.WARN, "Claude Code", "no `claude` on PATH", claude.INSTALL)
    return Finding(Level.OK, "Claude Code", f"{machine.output_of('claude', '--version').strip() or 'version unknown'}")


CHECKS: tuple[Check, ...] = (
    python, engine_found, graphics, memory, data_folder, store, model, broker, ports, doors, weights, warm, node,
    client,
)  # fmt: skip


def _failed(subject: str, error: CorralError) -> Finding:
    return _found(Level.FAIL, subject, error)


def _found(level: Level, subject: str, error: CorralError) -> Finding:
    text, _, remedy = error.message.removeprefix(f"{subject}: ").partition("; ")
    return Finding(level, subject, text, remedy)
