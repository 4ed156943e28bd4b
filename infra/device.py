"""The device that an engine computes on: which cards it sees, and the memory there is.

Owns: the variables that show cards to an engine, what an engine lists of them, and the main memory where it has none.
Never: decides how much of it is used.
"""

import re

from infra import engine_search, machine
from infra.config import Settings
from infra.engine_search import EMBEDDED
from infra.gguf_plan import Memory

MIB = 2**20
MAIN_MEMORY = "main memory"
# llama.cpp leaves as much free on a card when it fits a model by itself (--fit-target); the CUDA driver's own part of a
# process is 0.3-0.75 GiB of it.
CARD_MARGIN_BYTES = 1024 * MIB
MAIN_MARGIN_BYTES = 256 * MIB  # code and heap of an engine's process
LISTED = re.compile(r"^\s+(\w+\d*): (.+) \((\d+) MiB, (\d+) MiB free\)", re.MULTILINE)


def gpu_environment(gpu: str) -> dict[str, str]:
    """The variables that show the engine only the cards in `gpu`: "0,1", "none", or "" to inherit.

    ROCR_VISIBLE_DEVICES is left alone: HIP counts its own list within that one, so both together would hide cards
    twice.
    """
    if not gpu:
        return {}
    cards = "" if gpu == "none" else gpu
    return {
        # Without it CUDA numbers the fastest card 0, and nvidia-smi another.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": cards,
        "HIP_VISIBLE_DEVICES": cards,
        "GGML_VK_VISIBLE_DEVICES": cards,
    }


def memory(settings: Settings) -> Memory:
    """Of the cards that this worker's engine would use, all together, else main memory. Takes a second or two.

    The engine itself is asked: it knows the cards of every vendor, and those it was not built for do not count. Raises
    StartError when there is no engine.
    """
    path = engine_search.find(settings)
    cards = [] if path == EMBEDDED or settings.gpu == "none" else LISTED.findall(_listing(path, settings.gpu))
    if not cards:
        return main_memory()
    total, free = (sum(int(card[part]) for card in cards) * MIB for part in (2, 3))
    return Memory(total, free, CARD_MARGIN_BYTES * len(cards), ", ".join(card[0] for card in cards))


def main_memory() -> Memory:
    """Of this machine, or of the container that this process is in."""
    total, available = machine.memory_bytes()
    return Memory(total, available, MAIN_MARGIN_BYTES, MAIN_MEMORY, holds_checkpoints=True)


def _listing(path: str, gpu: str) -> str:
    return machine.output_of(path, "--list-devices", environment=gpu_environment(gpu))
