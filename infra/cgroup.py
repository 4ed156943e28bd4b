"""Limits that Linux control groups put on this process's memory: a container's, a service's.

Owns: where versions 1 and 2 write them.
Never: sets one.
"""

import re
from collections.abc import Iterator
from pathlib import Path

OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# Version: names of the limit, of what is held, and of the part of it that is file cache, given back on demand.
NAMES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def memory_limits() -> Iterator[tuple[int, int]]:
    """Limit and held bytes of each group around this process that has a limit; none on other systems."""
    for folder, version in _groups():
        limit, held, cache = NAMES[version]
        if most := _number(_text(folder / limit)):
            cached = re.search(rf"^{cache} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
            yield most, max(0, _number(_text(folder / held)) - (int(cached[1]) if cached else 0))


def _groups() -> Iterator[tuple[Path, int]]:
    """The folder of each group and its version, from the innermost outward."""
    for line in _text(OWN_GROUPS).splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0":
            root, version = GROUPS, 2
        elif "memory" in controllers.split(","):
            root, version = GROUPS / "memory", 1
        else:
            continue
        own = root / path.lstrip("/")
        yield from ((folder, version) for folder in (own, *own.parents) if folder.is_relative_to(root))


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _number(text: str) -> int:
    """0 for a word such as `max`, or nothing."""
    return int(text) if text.strip().isdigit() else 0
