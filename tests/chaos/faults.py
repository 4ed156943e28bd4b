"""What goes wrong, kind by kind.

Owns: the kinds, how each is done to a house, and when its cause is over.
Never: judges. Starting dead parts again is the house's.
"""

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from tests.chaos.cuts import cut_all, cut_api, cut_engine, cut_worker, full_disk
from tests.chaos.house import House
from tests.doubles.processes import Child
from tests.doubles.services import wait_for

BACK_S = 60.0
FREEZE_S = (5.0, 15.0)
SLOW_S, ON_S, OFF_S = 6.0, 0.05, 0.25


@dataclass(frozen=True)
class Fault:
    """One fault: when it was done, and when its cause was over, on the monotonic clock."""

    kind: str
    what: str
    at_s: float
    over_s: float


Doing = Callable[[House, random.Random], str]


def kill_worker(house: House, dice: random.Random) -> str:
    """kill -9 of a worker; its engine goes with it."""
    name = dice.choice(house.first_workers)
    house.workers[name].send(signal.SIGKILL)
    return name


def kill_workers(house: House, dice: random.Random) -> str:
    """kill -9 of all workers at once."""
    for name in house.first_workers:
        house.workers[name].send(signal.SIGKILL)
    return "all"


def kill_engine(house: House, dice: random.Random) -> str:
    """kill -9 of an engine alone."""
    name = dice.choice(house.first_workers)
    if engine := house.engine_of(name):
        engine.kill()
    return f"engine of {name}"


def freeze_worker(house: House, dice: random.Random) -> str:
    """A worker stands still past its lease: others take its jobs, and what it says when it is back is refused."""
    name = dice.choice(house.first_workers)
    with _frozen(house.workers[name]):
        time.sleep(dice.uniform(*FREEZE_S))
    return name


def freeze_engine(house: House, dice: random.Random) -> str:
    """An engine stands still for a while."""
    name = dice.choice(house.first_workers)
    if engine := house.engine_of(name):
        with suppress(psutil.NoSuchProcess):
            engine.suspend()
            time.sleep(dice.uniform(*FREEZE_S))
            engine.resume()
    return f"engine of {name}"


def slow_engine(house: House, dice: random.Random) -> str:
    """An engine gets a sixth of its time."""
    name = dice.choice(house.first_workers)
    until_s = time.monotonic() + SLOW_S
    if engine := house.engine_of(name):
        with suppress(psutil.NoSuchProcess):
            while time.monotonic() < until_s:
                engine.suspend()
                time.sleep(OFF_S)
                engine.resume()
                time.sleep(ON_S)
    return f"engine of {name}"


def twin(house: House, dice: random.Random) -> str:
    """A second worker is started under the name of one that lives: it must end by itself."""
    name = dice.choice(house.first_workers)
    first = house.workers[name]
    second = house.start_worker(name, settings=_elsewhere(house, name))
    house.workers[name] = first
    try:
        wait_for(lambda: not second.alive, f"the second {name} to end", BACK_S)
    finally:
        second.stop()
    return f"a second {name}"


def zombie(house: House, dice: random.Random) -> str:
    """A worker stands still until another has taken its name, then comes back: it must end by itself."""
    name = dice.choice(house.first_workers)
    first = house.workers[name]
    with _frozen(first):
        house.start_worker(name, settings=_elsewhere(house, name))
        house.wait_whole()
    wait_for(lambda: not first.alive, f"the first {name} to end", BACK_S)
    return name


def kill_api(house: House, dice: random.Random) -> str:
    """kill -9 of one API; the others' clients may not notice."""
    number = dice.randrange(len(house.apis))
    before = house.apis[number]
    before.send(signal.SIGKILL)
    wait_for(lambda: house.apis[number] is not before and house.ready(), "the API to be back", BACK_S)
    return f"api{number}"


def kill_broker(house: House, dice: random.Random) -> str:
    """kill -9 of the broker, which comes back with its data."""
    before = house.broker.child
    assert before is not None
    before.send(signal.SIGKILL)
    wait_for(lambda: house.broker.child is not before and house.broker.answers(), "the broker to be back", BACK_S)
    return "broker"


def lose_broker(house: House, dice: random.Random) -> str:
    """kill -9 of the broker, which comes back with nothing."""
    before = house.broker.child
    assert before is not None
    before.stop(signal.SIGKILL)
    shutil.rmtree(house.broker.folder / "appendonlydir")
    wait_for(lambda: house.broker.child is not before and house.broker.answers(), "the broker to be back", BACK_S)
    return "broker"


def freeze_broker(house: House, dice: random.Random) -> str:
    """The broker stands still past every lease."""
    assert house.broker.child is not None
    with _frozen(house.broker.child):
        time.sleep(dice.uniform(*FREEZE_S))
    return "broker"


def flush_broker(house: House, dice: random.Random) -> str:
    """The broker loses all that it holds."""
    house.broker.flush()
    return "broker"


def kill_flower(house: House, dice: random.Random) -> str:
    """kill -9 of Flower, which nobody may notice."""
    before = house.flower
    assert before is not None
    before.send(signal.SIGKILL)
    wait_for(lambda: house.flower is not before, "Flower to be back", BACK_S)
    return "flower"


KINDS: dict[str, Doing] = {
    "kill-worker": kill_worker,
    "kill-workers": kill_workers,
    "kill-engine": kill_engine,
    "freeze-worker": freeze_worker,
    "freeze-engine": freeze_engine,
    "slow-engine": slow_engine,
    "twin": twin,
    "zombie": zombie,
    "kill-api": kill_api,
    "kill-broker": kill_broker,
    "freeze-broker": freeze_broker,
    "lose-broker": lose_broker,
    "flush-broker": flush_broker,
    "cut-worker": cut_worker,
    "cut-api": cut_api,
    "cut-all": cut_all,
    "cut-engine": cut_engine,
    "full-disk": full_disk,
    "kill-flower": kill_flower,
}
THROUGH_A_NETWORK = frozenset({"cut-worker", "cut-api"})  # these need a house that is `cuttable`


def _elsewhere(house: House, name: str) -> dict[str, object]:
    """Settings of another machine: on one machine its lock keeps a second worker of one name from starting at all."""
    return {"data_dir": house.folder / "elsewhere" / f"{name}-{time.monotonic_ns()}"}


# Others take over while these last; from the others one recovers once their cause is over.
WHILE_IT_LASTS = frozenset(
    {
        "kill-worker", "kill-workers", "kill-engine", "freeze-worker", "zombie", "twin", "cut-worker", "cut-all",
        "cut-engine", "full-disk", "kill-flower",
    }
)  # fmt: skip


def do(kind: str, house: House, dice: random.Random) -> Fault:
    """Do one and return when its cause is over. Raises AssertionError when a part does not come back."""
    at_s = time.monotonic()
    what = KINDS[kind](house, dice)
    return Fault(kind, what, at_s, time.monotonic())


@contextmanager
def _frozen(child: Child) -> Iterator[None]:
    child.send(signal.SIGSTOP)
    try:
        yield
    finally:
        child.send(signal.SIGCONT)
