"""What an engine's process holds of main memory and of the cards.

Owns: how the operating system and the vendor's tool are asked.
Never: judges it (`scheduler.policy.growing`).
"""

import re

import psutil

from infra import machine

MIB = 2**20
APPS = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")


def resident_bytes(pid: int) -> int:
    """Memory of the process that is in RAM, the mapped model included; 0 while there is none."""
    return _memory(pid)[0]


def private_bytes(pid: int) -> int:
    """The part of it that nothing but the end of the process gives back: without files that are mapped, of which the
    kernel keeps as much as it has room for. 0 while there is none."""
    resident, shared = _memory(pid)
    return max(0, resident - shared)


def card_bytes(pid: int) -> int:
    """Memory of NVIDIA's cards that the process holds; 0 where the tool is missing or does not know the process, as in
    a container with process numbers of its own."""
    rows = re.findall(rf"^\s*{pid}\s*,\s*(\d+)\s*$", machine.output_of("nvidia-smi", *APPS), re.MULTILINE)
    return sum(map(int, rows)) * MIB


def _memory(pid: int) -> tuple[int, int]:
    try:
        memory = psutil.Process(pid).memory_info() if pid else None
    except psutil.Error:
        return 0, 0
    return (int(memory.rss), int(getattr(memory, "shared", 0))) if memory else (0, 0)
