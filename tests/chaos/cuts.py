"""What goes wrong between the parts and around them: connections that break, cables that are pulled, a full disk.

Owns: how each of these is done to a house.
Never: stops a process (`faults`), judges.
"""

import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil

from tests.chaos.house import House
from tests.doubles.proxy import Proxy

APART_S = (0.1, 12.0)  # past a worker's lease, short of the time for which a broker may be away
FULL_S = (2.0, 8.0)
FULL_BYTES = 4096  # a file may not grow beyond


def cut_worker(house: House, dice: random.Random) -> str:
    """A worker loses the broker for a while; others take over what it had."""
    name = dice.choice(house.first_workers)
    if house.hosts is None:
        return _apart(house.networks[name], dice, name)
    house.hosts.pull(name)
    try:
        time.sleep(dice.uniform(*APART_S))
    finally:
        house.hosts.plug(name)
    return f"the cable of {name}"


def cut_api(house: House, dice: random.Random) -> str:
    """An API loses the broker for a while; its clients wait."""
    name = f"api{dice.randrange(len(house.apis))}"
    return _apart(house.networks[name], dice, name)


def cut_all(house: House, dice: random.Random) -> str:
    """Every connection to the broker breaks, once."""
    for kind in ("normal", "pubsub"):
        house.redis.client_kill_filter(_type=kind, skipme=True)
    return "broker"


def cut_engine(house: House, dice: random.Random) -> str:
    """Every connection between a worker and its engine breaks, once; the engine lives."""
    name = dice.choice(house.first_workers)
    if engine := house.engine_of(name):
        engine.send_signal(signal.SIGUSR1)
    return f"engine of {name}"


def full_disk(house: House, dice: random.Random) -> str:
    """Nothing that a worker and its engine write grows any more: saved caches, their descriptions, logs."""
    name = dice.choice(house.first_workers)
    with ExitStack() as limits, suppress(psutil.NoSuchProcess):
        for process in (psutil.Process(house.workers[name].pid), house.engine_of(name)):
            if process is not None:
                limits.enter_context(_no_room(process))
        time.sleep(dice.uniform(*FULL_S))
    return name


def _apart(network: Proxy, dice: random.Random, name: str) -> str:
    """Connections break and none comes about, or none breaks and all fall silent."""
    silent = dice.random() < 0.5
    (network.hold if silent else network.cut)()
    try:
        time.sleep(dice.uniform(*APART_S))
    finally:
        network.mend()
    return f"{name}, {'silent' if silent else 'cut'}"


@contextmanager
def _no_room(process: psutil.Process) -> Iterator[None]:
    least, most = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (FULL_BYTES, most))
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.rlimit(psutil.RLIMIT_FSIZE, (least, most))
