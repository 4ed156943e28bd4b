"""The engine's log file, and what it tells about an end.

Owns: the one line that is worth showing to a person, out of the engine's many; the size of the log.
Never: interprets a line beyond choosing it. The words matched are llama.cpp's own.
"""

import re
import signal
from pathlib import Path

ROTATE_BYTES = 16 * 2**20
TAIL_BYTES = 64 * 1024
PORT_TAKEN = re.compile(r"couldn't bind|address already in use", re.IGNORECASE)
# "0.00.006.464 E cmn  common_init_: " and the older "srv  load_model: " and "llama_model_load: "
_PREFIX = re.compile(r"^(?:\d+(?:\.\d+){3} [A-Z] )?(?:(?:srv|cmn|slot|que)\s+)?(?:[\w~()]+:\s+)*(?=\S)")
_TELLING = re.compile(
    r"out of memory|failed to allocate|unable to allocate|failed to create context|error loading model|^error: |"
    r"couldn't bind|not within the file bounds|unknown model architecture|invalid argument|GGML_ASSERT|"
    r"CUDA error|no such file|failed to open|cannot run",
    re.IGNORECASE,
)
_ABORTED = re.compile(r"out of memory|GGML_ASSERT|CUDA error|failed to allocate|unable to allocate", re.IGNORECASE)
_TROUBLE = re.compile(r"error|fail|invalid|unknown|cannot", re.IGNORECASE)
_EMPTY_WORDS = re.compile(
    r"exiting due to|cleaning up before exit|the lines above say why|waiting for main loop|"
    r"pinned memory"  # of the main memory: the engine does without
)
_MEMORY = re.compile(
    r"out of (?:device |host )?memory|OutOf(?:Device|Host)?Memory|\bto allocate|allocation of size \d+ failed|"
    r"failed to create context",
    re.IGNORECASE,
)
_CARD = re.compile(
    r"CUDA error|ROCm error|(?:cuda|hip)Malloc|\bon device \d|(?:CUDA|ROCm|Vulkan|SYCL)\d+ buffer|"
    r"device memory|OutOfDeviceMemory",
    re.IGNORECASE,
)
LAST_LINES = 80  # an abort writes where it stood after the line that says why
CARD_FULL = "the memory of the card is full: "
CARD_REMEDY = '; lower --slots or --context, or store the caches smaller: --engine-args "-ctk q8_0 -ctv q8_0"'
MEMORY_REMEDY = "; if memory is short, lower --slots or --context, or take a smaller model"
_HINTS = {signal.SIGKILL: "; the machine may have run out of memory", signal.SIGILL: "; it is built for another CPU"}


def size(path: Path) -> int:
    """Where the next run's lines begin. A log that has grown large is set aside first, in place of the one before."""
    if (length := end(path)) < ROTATE_BYTES:
        return length
    path.replace(path.with_suffix(".log.1"))
    return 0


def end(path: Path) -> int:
    """Where the next line begins."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def since(path: Path, start: int) -> str:
    """The last 64 KiB of what was written after `start`."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(start, end - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def reason(text: str, returncode: int | None) -> str:
    """One sentence on why the process ended, from its log and its exit status."""
    line = want_of_memory(text) or telling_line(text)
    if returncode is not None and returncode < 0:
        number = signal.Signals(-returncode)
        ended = f"the engine was ended by {number.name}"
        aborted = _ABORTED.search(line) or short_of_memory(line)
        return f"{ended}: {line}" if aborted else ended + _HINTS.get(number, "")
    return line or f"the engine exited with code {returncode}"


def want_of_memory(text: str) -> str:
    """The first of the last lines that says that memory is short, and what to do about it; empty when none does.

    The first, because the others follow from it, and an abort tells its place as well.
    """
    for line in _lines(text)[-LAST_LINES:]:
        bare = _PREFIX.sub("", line, count=1)
        if _MEMORY.search(bare):
            return f"{CARD_FULL}{bare}{CARD_REMEDY}" if _CARD.search(line) else bare + MEMORY_REMEDY
    return ""


def short_of_memory(reason: str) -> bool:
    """Whether a reason of ours is want of memory."""
    return reason.endswith((CARD_REMEDY, MEMORY_REMEDY))


def telling_line(text: str) -> str:
    """The last line that names a cause, else the last that speaks of trouble, else the last; without its prefix."""
    lines = _lines(text)
    for words in (_TELLING, _TROUBLE):
        for line in reversed(lines):
            bare = _PREFIX.sub("", line, count=1)
            if words.search(bare) or words.search(line):
                return bare
    return _PREFIX.sub("", lines[-1], count=1) if lines else ""


def _lines(text: str) -> list[str]:
    return [line for raw in text.splitlines() if (line := raw.strip()) and not _EMPTY_WORDS.search(line)]
