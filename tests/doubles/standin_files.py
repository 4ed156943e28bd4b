"""The stand-in engine's slot files and its bare prompts: what a worker needs to keep caches.

Owns: POST /slots/N?action=save|restore|erase and POST /completion, with the real engine's words when they fail.
Never: HTTP. The standard library only.

A file is one line of JSON, the words that the slot held, and then as many bytes as their cache would take: a hole, so
that it costs no disk. While a file moves, every answer of the engine stands still.
"""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.doubles.standin_script import JsonObject, words
from tests.doubles.standin_slots import Pace, Refusal, Slot, SlotTable

NO_ACTIONS = Refusal(501, "This server does not support slots action. Start it with `--slot-save-path`",
                     "not_supported_error")  # fmt: skip
NOT_RESTORED = "Unable to restore slot: No available space in KV cache or invalid slot save file"
NAME = re.compile(r"(?!.*\.\.)[\w.-]+")


@dataclass(frozen=True)
class Disk:
    """Where slot files lie, what a token takes there, and how fast they move; without a folder or bytes none do.

    `useless`: a restored slot holds nothing of use, as with a model whose cache has a sliding window.
    """

    folder: Path | None
    bytes_per_token: int
    save_bytes_per_s: float
    restore_bytes_per_s: float
    useless: bool

    @classmethod
    def read(cls, folder: str | None, environment: Mapping[str, str]) -> "Disk":
        """From the flag and the STANDIN_ variables."""
        return cls(
            Path(folder) if folder else None,
            int(environment.get("STANDIN_BYTES_PER_TOKEN", "0")),
            float(environment.get("STANDIN_SAVE_BYTES_PER_S", "1e9")),
            float(environment.get("STANDIN_RESTORE_BYTES_PER_S", "2e9")),
            bool(environment.get("STANDIN_RESTORED_IS_USELESS")),
        )


async def act(table: SlotTable, disk: Disk, number: str, action: str, body: JsonObject) -> JsonObject | Refusal:
    """The answer to POST /slots/<number>?action=<action>."""
    refusal = _refused(disk, number, action, body)
    if refusal is not None or disk.folder is None:
        return refusal or NO_ACTIONS
    slot = table.slots[int(number) % len(table.slots)]
    async with slot.lock:
        if action == "erase":
            erased, slot.cached = len(slot.cached), []
            return {"id_slot": int(number), "n_erased": erased}
        move = _save if action == "save" else _restore
        moved = await move(table, disk, slot, disk.folder / str(body["filename"]))
    return moved if isinstance(moved, Refusal) else {"id_slot": int(number), "filename": body["filename"], **moved}


async def complete(table: SlotTable, body: JsonObject) -> JsonObject | Refusal:
    """The answer to POST /completion: a bare prompt and one word; `n_predict` is taken as 1."""
    if "prompt" not in body:
        return _invalid("[json.exception.out_of_range.403] key 'prompt' not found")
    prompt = words(str(body["prompt"]))
    refusal = table.too_long(len(prompt))
    if refusal is not None:
        return refusal
    slot = table.choose(int(body.get("id_slot", -1)), prompt)
    async with slot.lock:
        pace = Pace(table.prefill_tokens_per_s)
        reused = slot.common(prompt) if body.get("cache_prompt", True) else 0
        await pace.reach(len(prompt) - reused)
        slot.cached = prompt
    timings = {"cache_n": reused, "prompt_n": len(prompt) - reused, "prompt_ms": pace.took_ms()}
    timings |= {"predicted_n": 1, "predicted_ms": 0.001}
    counts = {"tokens_predicted": 1, "tokens_evaluated": len(prompt), "tokens_cached": len(prompt)}
    return {"content": " w1", "id_slot": slot.number, "stop": True, "timings": timings, **counts}


def _refused(disk: Disk, number: str, action: str, body: JsonObject) -> Refusal | None:
    if disk.folder is None or not disk.bytes_per_token:
        return NO_ACTIONS
    if not number.isdigit():
        return _invalid("Invalid slot ID")
    if action not in {"save", "restore", "erase"}:
        return _invalid("Invalid action")
    if action != "erase" and "filename" not in body:
        return _invalid("[json.exception.out_of_range.403] key 'filename' not found")
    if action != "erase" and not NAME.fullmatch(str(body["filename"])):
        return _invalid("Invalid filename")
    return None


async def _save(table: SlotTable, disk: Disk, slot: Slot, path: Path) -> JsonObject | Refusal:
    began = time.monotonic()
    size_bytes = _size_bytes(disk, slot.cached)
    try:
        with path.open("wb") as file:
            file.write(_head(slot.cached))
            file.flush()
            await table.stand_still(size_bytes / disk.save_bytes_per_s)
            file.truncate(size_bytes)
    except OSError:
        return Refusal(500, "Unable to save slot", "server_error")
    return {"n_saved": len(slot.cached), "n_written": size_bytes, "timings": {"save_ms": _ms_since(began)}}


async def _restore(table: SlotTable, disk: Disk, slot: Slot, path: Path) -> JsonObject | Refusal:
    began = time.monotonic()
    slot.cached = []
    held = _read(disk, path)
    if held is None:
        return _invalid(NOT_RESTORED)
    size_bytes = _size_bytes(disk, held)
    await table.stand_still(size_bytes / disk.restore_bytes_per_s)
    slot.cached = [] if disk.useless else held
    return {"n_restored": len(held), "n_read": size_bytes, "timings": {"restore_ms": _ms_since(began)}}


def _read(disk: Disk, path: Path) -> list[str] | None:
    """The words of a whole file, else None."""
    try:
        with path.open("rb") as file:
            held: list[str] = json.loads(file.readline())
        return held if path.stat().st_size == _size_bytes(disk, held) else None
    except (OSError, ValueError):
        return None


def _head(held: list[str]) -> bytes:
    return json.dumps(held).encode() + b"\n"


def _size_bytes(disk: Disk, held: list[str]) -> int:
    return len(_head(held)) + len(held) * disk.bytes_per_token


def _invalid(words_: str) -> Refusal:
    return Refusal(400, words_, "invalid_request_error")


def _ms_since(began: float) -> float:
    return (time.monotonic() - began) * 1000
