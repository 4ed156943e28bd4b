"""What must not be there any more once every request has ended.

Owns: the search of the broker, the processes, their threads and handles, and the folder of saved caches.
Never: removes anything.
"""

import re
import time
from collections.abc import Callable, Mapping

from tests.chaos.house import House

QUIET_S = 30.0
POLL_S = 0.25
# A part makes pools and connections as it needs them, and keeps them; a leak of one a request is far beyond this.
SPARE_THREADS, SPARE_HANDLES = 24, 64

WORK = re.compile(r"corral:(line|running|lock):.*|llm\..*")
ENDED = {"done", "failed", "cancelled"}  # such a record and its stream go by themselves, a minute or two later
# These stay as long as the broker: how much there is of them does not grow with requests.
KEPT = re.compile(r"corral:(workers|arrivals|layout|misses|counts|lengths:.*|count:.*)|_kombu\..*")


def left_over(house: House, before: Mapping[str, tuple[int, int, int]]) -> list[str]:
    """What is left, in words, after waiting a while for it to go."""
    return [
        *_once_quiet(lambda: _work(house)),
        *_once_quiet(lambda: _for_ever(house)),
        *_once_quiet(lambda: _processes(house)),
        *_once_quiet(lambda: _grown(house, before)),
        *_once_quiet(lambda: _files(house)),
    ]


def _once_quiet(look: Callable[[], list[str]]) -> list[str]:
    until_s = time.monotonic() + QUIET_S
    while (found := look()) and time.monotonic() < until_s:
        time.sleep(POLL_S)
    return found


def _work(house: House) -> list[str]:
    """Keys of work that is over, and records of work that goes on with nobody to ask for it."""
    names = house.keys()
    states = {name: str(house.redis.hget(name, "state")) for name in names if name.startswith("corral:job:")}
    running = [f"{name} is {state}" for name, state in states.items() if state not in {*ENDED, "None"}]
    return [f"key {name}" for name in names if WORK.fullmatch(name)] + running


def _for_ever(house: House) -> list[str]:
    """Keys that nothing will ever remove."""
    names = house.keys()
    return [f"key {name} has no end" for name in names if not KEPT.fullmatch(name) and house.redis.ttl(name) == -1]


def _processes(house: House) -> list[str]:
    engines = [process for process in house.processes() if "engine" in process or "embedded" in process]
    extra = len(engines) - len(house.first_workers)
    return [f"{extra} engines too many: {engines}"] if extra else []


def _grown(house: House, before: Mapping[str, tuple[int, int, int]]) -> list[str]:
    found = []
    for name, (threads, handles, _) in house.census().items():
        first_threads, first_handles, _ = before.get(name, (threads, handles, 0))
        if threads > first_threads + SPARE_THREADS or handles > first_handles + SPARE_HANDLES:
            found.append(f"{name}: threads {first_threads} -> {threads}, handles {first_handles} -> {handles}")
    return found


def _files(house: House) -> list[str]:
    """Saved caches without a description, or half descriptions; a worker that died leaves them to the others' sweep."""
    files = list(house.folder.rglob("*.kv"))
    described = "".join(path.read_text(errors="replace") for path in house.folder.rglob("*.json"))
    return [f"file {path.name}" for path in files if path.name not in described]
