"""Conversations at random on two workers with one store, with everything that can fail: no book is ever wrong."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.errors import EngineError
from scheduler.contract import StopReason
from tests.doubles.slot_engine import tokens_of_prompt
from tests.unit.workers.house import ERRORS, House, answer, talk
from workers import saved as saved_caches

pytestmark = pytest.mark.unit


class Trial:
    """Conversations at random on two workers with one store, with everything that can fail; after each step nothing
    that is written down may be untrue."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.folder = folder
        self.houses = [House(folder, 3, limit_bytes=60_000_000) for _ in range(2)]
        self.talks: dict[str, list[str]] = {}
        for house in self.houses:
            house.engine.fail = self.fail

    def fail(self, *_: object) -> EngineError | None:
        return self.dice.choice(ERRORS) if self.dice.random() < 0.05 else None

    def step(self) -> None:
        house = self.dice.choice(self.houses)
        house.now_s += self.dice.expovariate(0.2)
        acts: list[tuple[Callable[[House], None], int]] = [
            (self.ask, 10), (self.keep, 3), (self.describe, 3), (self.spoil, 1), (self.sweep, 1),
        ]  # fmt: skip
        self.dice.choices([act for act, _ in acts], [often for _, often in acts])[0](house)
        self.check()

    def ask(self, house: House) -> None:
        name = f"a{self.dice.randrange(7)}"
        texts = self.talks.setdefault(name, talk(name, 1))
        if self.dice.random() < 0.1:
            texts = self.talks[name] = talk(f"{name} anew {self.dice.random()}", 1)
        if self.dice.random() < 0.15:
            house.turn(name, *texts, share=self.dice.random())
            return
        house.turn(name, *texts, reason=self.dice.choice(list(StopReason)))
        texts += [answer(*texts), f"{name} goes on {self.dice.random()} " * 20]
        if len(texts) > 12:
            self.talks[name] = talk(f"{name} compacted {self.dice.random()}", 1)

    def keep(self, house: House) -> None:
        with house.table.keep(self.dice.choice) as slot:
            if slot is not None and slot.owner is not None:
                house.caches.save(slot)
                if self.dice.random() < 0.3:
                    house.table.free(slot)

    def describe(self, house: House) -> None:
        if house.caches.saved is not None:
            house.caches.saved.describe()

    def sweep(self, house: House) -> None:
        house.store.sweep()

    def spoil(self, _: House) -> None:
        files = sorted(self.folder.glob("*.kv"))
        if files:
            path = self.dice.choice(files)
            path.write_bytes(b"[]") if self.dice.random() < 0.5 else path.unlink()

    def check(self) -> None:
        for house in self.houses:
            for slot in house.table.slots:
                if slot.held is not None:
                    really = house.engine.held[slot.number]
                    known = tokens_of_prompt(slot.held.chain)
                    assert really[: len(known)] == known[: len(really)], "the slot does not hold what is written down"
                    assert slot.held.saved_tokens <= slot.held.tokens
            for path in self.folder.glob("*.json"):
                self.check_description(house, path.stem.partition(".")[2])

    def check_description(self, house: House, what: str) -> None:
        entry = house.store.find(what)
        if entry is None:
            return
        try:
            content = house.engine.content(entry.file)
        except OSError:
            return
        known = tokens_of_prompt(entry.chain)
        assert content == [] or content[: len(known)] == known[: len(content)], "a file holds what it does not say"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_that_is_written_down_is_ever_untrue(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_caches, "PAUSE_S", 0.0)
    trial = Trial(tmp_path / "kv", seed)
    for _ in range(250):
        trial.step()
    for house in trial.houses:
        info = house.caches.info()
        assert info.saves
        assert info.restores
        assert info.failures
        assert not any(slot.busy for slot in house.table.slots)
