"""What this machine has: cards, cores, memory, who listens on a port.

Owns: asking the vendor's tools and the operating system.
Never: decides what to do with it.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping

import psutil

from infra import cgroup

TOOL_TIMEOUT_S = 20  # a driver that starts cold takes several seconds


def cards() -> tuple[str, ...]:
    """Numbers of the GPUs this process may use, from CUDA_VISIBLE_DEVICES, nvidia-smi or rocm-smi; none is empty."""
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        visible = os.environ.get(variable)
        if visible is not None:
            return tuple(re.findall(r"\d+", visible)) if re.fullmatch(r"[\d, ]*", visible) else ()
    nvidia = tuple(re.findall(r"^GPU (\d+):", output_of("nvidia-smi", "-L"), re.MULTILINE))
    return nvidia or tuple(
        sorted(set(re.findall(r"^GPU\[(\d+)\]", output_of("rocm-smi", "-i"), re.MULTILINE)), key=int)
    )


def card_names() -> tuple[str, ...]:
    """The cards as their vendor's tool names them, for people."""
    nvidia = re.findall(r"^GPU \d+: (.+?) \(UUID", output_of("nvidia-smi", "-L"), re.MULTILINE)
    amd = re.findall(r"^GPU\[\d+\]\s*: (?:Device Name|Card series):\s*(.+)$", output_of("rocm-smi", "-i"), re.MULTILINE)
    return tuple(nvidia or amd)


def cores() -> int:
    """Cores this process may run on."""
    return len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1


def memory_bytes() -> tuple[int, int]:
    """Memory in all, and available, in bytes; in a container that has a limit, of what it may have."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    for limit, held in cgroup.memory_limits():
        total, available = min(total, limit), min(available, limit - held)
    return total, max(0, available)


def output_of(tool: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """What a tool prints on both streams; empty when it is missing, fails to run or takes too long.

    `environment` goes over this process's own.
    """
    path = shutil.which(tool)
    if path is None:
        return ""
    try:
        own = {**os.environ, **(environment or {})}
        done = subprocess.run([path, *arguments], capture_output=True, timeout=TOOL_TIMEOUT_S, check=False, env=own)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).decode(errors="replace")


def listener_of(port: int) -> str:
    """`name (pid)` of the program that listens on a port, where the system lets us see it; else empty."""
    try:
        for connection in psutil.net_connections("inet"):
            listens = connection.status == psutil.CONN_LISTEN and tuple(connection.laddr)[1:2] == (port,)
            if listens and connection.pid:
                return f"{psutil.Process(connection.pid).name()}, pid {connection.pid}"
    except psutil.Error:
        return ""
    return ""
