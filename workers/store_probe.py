"""Whether saved caches help this model on this engine: tried once, and remembered in the store.

Owns: the space of the store that is safe for this engine, and the probe that decides if it is used.
Never: keeps a conversation.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import inf
from pathlib import Path

import structlog
from pydantic import TypeAdapter

from infra import engine_options, store_folder
from infra.config import Settings
from infra.errors import CorralError, StartError
from infra.gguf_file import file_hash
from scheduler.policy.swap import Speeds
from workers.llama.client import EngineClient
from workers.meter import LEAST_PREFILL_TOKENS, Meter
from workers.store import Store

log = structlog.get_logger(__name__)
LEAST_NUMBERS = LEAST_PREFILL_TOKENS + 4  # a number of three digits with its blank is one to four tokens
LEAST_REUSED = 0.9
TOO_SHORT = "the probe was too short to measure a speed"
NO_USE = "this model's saved caches are of no use: restored {cached} of {tokens} tokens (sliding window or recurrent)"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`off` says why nothing is saved; empty: saving works, at these speeds."""

    off: str
    speeds: Speeds | None = None

    @property
    def sound(self) -> bool:
        """Whether it says something that can be reckoned with."""
        if self.speeds is None:
            return bool(self.off)
        return all(0 < speed < inf for speed in asdict(self.speeds).values())


_VERDICT = TypeAdapter(Verdict)


def prepare(settings: Settings) -> str:
    """Make the store's folder. Returns why it cannot be used, or the empty text."""
    folder = settings.store_folder
    return "store_dir is off" if folder is None else store_folder.unusable(folder)


def space(settings: Settings, model_hash: str, build: str, context_tokens: int) -> str:
    """What must be equal for a saved cache to fit: model, engine build, KV types, window, and the further flags with
    the files they name (adapters), of which any may change what a cache holds or how it is laid out."""
    kinds = engine_options.read(settings.engine_args)
    named = f"{model_hash}-{build}-{kinds.key_type}-{kinds.value_type}-{context_tokens}"
    flags = " ".join(engine_options.split(settings.engine_args))
    exact = f"{named} {flags} {' '.join(_hashes(flags))}"  # the name is made readable and short
    digest = sha256(exact.encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '_', named)[:110]}-{digest}"


def _hashes(flags: str) -> Iterator[str]:
    """Of the files among the flags; the other words are none."""
    for name in re.split(r"[\s=,:]+", flags):
        with suppress(OSError, StartError):
            yield file_hash(Path(name))


def decide(client: EngineClient, store: Store, folder: Path, name: str, slots: int, window: int) -> Verdict:
    """The remembered verdict of this space, else that of a probe, remembered unless it failed for another reason.

    `window` is the widest sliding window of the model in tokens, 0 for none: the probe's prompt must be longer.
    """
    known = _remembered(folder / f"{name}.probe.json")
    if known is not None:
        return known
    try:
        verdict = _probe(client, store, slots, max(LEAST_NUMBERS, window // 2 + 1))
    except CorralError as error:  # of the engine or the folder, or a window that is smaller than the probe's prompt
        log.warning("store_not_probed", reason=error.message)
        return Verdict(f"the probe failed: {error.message}")
    log.info("store_probed", off=verdict.off)
    if verdict.off == TOO_SHORT:
        return verdict
    _remember(folder / f"{name}.probe.json", verdict)
    return verdict


def _probe(client: EngineClient, store: Store, slots: int, numbers: int) -> Verdict:
    """Prefill, save, restore into another slot, and ask with another end: how much was found?"""
    meter = Meter()
    text = " ".join(str(100 + number % 900) for number in range(numbers))
    first, other = 0, slots - 1
    asked = client.prefill(f"{text} alpha", first)
    file = store.new_file("c-0", 0)
    try:
        saved = client.save(first, file)
        if other == first:
            client.prefill("omega", first)  # so that what is found was restored
        restored = client.restore(other, file)
        again = client.prefill(f"{text} omega", other)
    finally:
        store.remove(file)
    if again.cached_tokens < LEAST_REUSED * asked.prompt_tokens:
        return Verdict(NO_USE.format(cached=again.cached_tokens, tokens=asked.prompt_tokens))
    meter.prefilled(asked.prompt_tokens - asked.cached_tokens, asked.prefill_ms)
    meter.saved(saved.size_bytes, saved.tokens, saved.took_ms)
    meter.restored(restored.size_bytes, restored.took_ms)
    return Verdict("", meter.speeds) if meter.speeds else Verdict(TOO_SHORT)


def _remembered(path: Path) -> Verdict | None:
    try:
        known = _VERDICT.validate_json(path.read_bytes(), strict=True)
    except (OSError, ValueError):
        return None
    return known if known.sound else None


def _remember(path: Path, verdict: Verdict) -> None:
    """Only a convenience: the next start probes again if it cannot be written."""
    try:
        path.write_text(json.dumps(asdict(verdict)))
    except OSError as error:
        log.warning("verdict_not_kept", reason=error.strerror)
