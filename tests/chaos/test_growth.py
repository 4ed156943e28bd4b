"""Of answers that have ended, of clients that hung up and of counts nothing is kept. For longer: by command."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.chaos.counted_house import CountedHouse
from tests.chaos.run import house_of
from tests.chaos.soak import at_work, standing
from tests.doubles.services import wait_for

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

ANSWERS = 300
PACES = (300, 500)
SOME = ANSWERS * 4 // 5  # one of each answer would be more
LOOKS = 30  # a few seconds: the last connections and hung-up answers are given back in their time
LEVEL_S = 30.0
# Not so: `blocks`. A small value of each answer may fill a cache that has a bound.
UNITS = ("objects", "threads", "handles")


def test_nothing_is_kept_of_an_answer(tmp_path: Path) -> None:
    with house_of(CountedHouse, tmp_path / "0", slots=6, standin={"bytes_per_token": 64}) as house:
        _answers(house)  # threads, connections and caches come to be
        before = _lowest(house)
        _answers(house)
        wait_for(lambda: _is_level(before, standing(house)), "what the parts hold to be as before", LEVEL_S)


def _answers(house: CountedHouse) -> None:
    with at_work(house, agents=6, paces=PACES) as findings:
        wait_for(lambda: findings.answered >= ANSWERS, f"{ANSWERS} answers", 120)
    assert findings.good, [*findings.lost, *findings.wrong]


def _lowest(house: CountedHouse) -> dict[str, float]:
    looks = [standing(house) for _ in range(LOOKS)]
    return {name: min(look[name] for look in looks) for name in looks[0]}


def _is_level(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Of the workers together, which share the answers."""
    grown: Counter[str] = Counter()
    for name in before:
        part, unit = name.split()
        grown[f"{part.rstrip('0123456789')} {unit}"] += int(now[name] - before[name])
    print(dict(grown))
    return all(rise < SOME for name, rise in grown.items() if name.split()[-1] in UNITS)
