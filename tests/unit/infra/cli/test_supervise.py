"""What happens when a part dies, and in which order parts stop. The processes here are pretended."""

from collections.abc import Callable
from pathlib import Path

import pytest

from infra.cli.supervise import RESTARTS, House, Part, Stage
from infra.errors import StartError

pytestmark = pytest.mark.unit


class Pretended(Part):
    """A part whose life the test decides."""

    def __init__(self, name: str, stage: Stage, log: Path, journal: list[str]) -> None:
        super().__init__(name, stage, [], {}, log)
        self.living = False
        self.journal = journal

    def start(self) -> None:
        self.living = True
        self.due = None
        self.journal.append(f"start {self.name}")

    @property
    def alive(self) -> bool:
        return self.living

    def stop(self, grace_s: float) -> None:
        self.living = False
        self.journal.append(f"stop {self.name} {grace_s:.0f}")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def journal() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, journal: list[str]) -> Callable[..., Pretended]:
    def build(name: str, stage: Stage) -> Pretended:
        return Pretended(name, stage, tmp_path / f"{name}.log", journal)

    return build


def test_a_worker_is_started_again_later_each_time(said: list[str], make: Callable[..., Pretended]) -> None:
    house, worker = House(said.append), make("worker w1", Stage.WORKERS)
    house.start(worker)
    delays = []
    now = 0.0
    for _ in range(RESTARTS):
        worker.living = False
        delays.append(house.tend(now))
        now += delays[-1]
        house.tend(now)
        assert worker.alive
    assert delays == [1, 2, 4, 8, 16]
    worker.living = False
    with pytest.raises(StartError, match="worker w1: ended 6 times in a row"):
        house.tend(now)


def test_a_worker_that_stays_down_leaves_the_others_serving(said: list[str], make: Callable[..., Pretended]) -> None:
    house = House(said.append)
    bad, good = (make(f"worker w{n}", Stage.WORKERS) for n in (1, 2))
    house.start(bad)
    house.start(good)
    bad.restarts = RESTARTS
    bad.living = False
    house.tend(0)
    assert "stays down" in said[-1]
    house.tend(1)
    assert good.alive


@pytest.mark.parametrize(("name", "stage"), [("API", Stage.API), ("broker", Stage.BROKER)])
def test_an_only_api_or_broker_comes_back_and_one_that_stays_down_ends_the_house(
    name: str, stage: Stage, said: list[str], make: Callable[..., Pretended]
) -> None:
    house, part = House(said.append), make(name, stage)
    house.start(part)
    assert house.tend(0) > 1
    part.living = False
    assert house.tend(0) == 1
    house.tend(1)
    assert part.alive
    part.restarts = RESTARTS
    part.living = False
    with pytest.raises(StartError, match=f"{name}: ended 6 times in a row"):
        house.tend(2)


def test_deaths_long_ago_are_forgotten(said: list[str], make: Callable[..., Pretended]) -> None:
    house, worker = House(said.append), make("worker w1", Stage.WORKERS)
    house.start(worker)
    worker.restarts = RESTARTS
    worker.living = False
    assert house.tend(worker.started + 1000) == 1


def test_parts_stop_api_first_and_broker_last(
    said: list[str], journal: list[str], make: Callable[..., Pretended]
) -> None:
    house = House(said.append)
    for name, stage in (
        ("broker", Stage.BROKER),
        ("worker w1", Stage.WORKERS),
        ("API", Stage.API),
        ("Flower", Stage.FLOWER),
    ):
        house.start(make(name, stage))
    journal.clear()
    house.stop(lambda stage: 30 if stage is Stage.API else 5)
    assert journal == ["stop API 30", "stop worker w1 5", "stop Flower 5", "stop broker 5"]
    house.stop(lambda _stage: 5)
    assert len(journal) == 4


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("noise\nerror: worker: the model is broken\nmore\n", "the model is broken"),
        ("error: first\nerror: last\n", "last"),
    ],
)
def test_the_parts_own_words_are_found_in_its_log(written: str, words: str, make: Callable[..., Pretended]) -> None:
    part = make("worker w1", Stage.WORKERS)
    part.log.write_text(written)
    assert part.last_words() == words


def test_without_words_of_its_own_the_log_is_named(make: Callable[..., Pretended]) -> None:
    part = make("worker w1", Stage.WORKERS)
    part.log.write_text("Traceback\n")
    assert str(part.log) in part.last_words()


def test_of_several_apis_one_may_stay_down_and_the_last_one_ends_the_house(
    said: list[str], make: Callable[..., Pretended]
) -> None:
    house = House(said.append)
    first, second = (make(f"API {number}", Stage.API) for number in (1, 2))
    for part in (first, second):
        house.start(part)
        part.restarts = RESTARTS
    first.living = False
    house.tend(0)
    assert "API 1: ended 6 times in a row and stays down" in said[-1]
    second.living = False
    with pytest.raises(StartError, match="API 2: ended 6 times in a row"):
        house.tend(1)
