"""Many conversations one after the other: balance of the homes, and how few move when a worker comes or goes."""

from collections import Counter

import pytest

from scheduler.policy.load import Load
from scheduler.policy.placement import Home, candidates, choose
from tests.unit.scheduler.policy.sites import fleet_of, known, worker

pytestmark = pytest.mark.unit

BOUND = 1.25
CONVERSATIONS = 600


def settled(slots: dict[str, int], homes: dict[str, str], count: int = CONVERSATIONS) -> dict[str, str]:
    """`count` conversations come, each after the homes of those before it are counted; those in `homes` have one."""
    at = Counter(home for home in homes.values() if home in slots)
    found = {}
    for number in range(count):
        conversation = f"conversation-{number}"
        home = homes.get(conversation)
        fleet = fleet_of(*(worker(name, slots=size, homes=at[name]) for name, size in slots.items()))
        job = known(conversation, home=Home(home) if home else None)
        offered = candidates(fleet, job, BOUND)
        choice = choose(offered, {name: Load(homes=at[name]) for name in slots}, job, 1000, 64)
        assert choice is not None
        found[conversation] = offered[choice.index].worker
        if found[conversation] != home:
            at[found[conversation]] += 1
    return found


@pytest.mark.parametrize("count", [2, 5, 12])
def test_homes_are_balanced_to_within_the_bound(count: int) -> None:
    at = Counter(settled({f"w{number}": 2 for number in range(count)}, {}).values())
    assert max(at.values()) / (CONVERSATIONS / count) <= BOUND + count / CONVERSATIONS


def test_unequal_workers_are_balanced_by_their_slots() -> None:
    slots = {"small": 1, "middle": 2, "large": 5}
    at = Counter(settled(slots, {}).values())
    assert all(at[name] / (CONVERSATIONS * size / 8) <= BOUND + 0.02 for name, size in slots.items())


@pytest.mark.parametrize("count", [3, 8])
def test_a_new_worker_takes_new_conversations_and_no_home(count: int) -> None:
    slots = {f"w{number}": 2 for number in range(count)}
    before = settled(slots, {}, CONVERSATIONS // 2)
    after = settled({**slots, "new": 2}, before)
    assert {name: after[name] for name in before} == before
    assert Counter(after.values())["new"] > 0


@pytest.mark.parametrize("count", [3, 8])
def test_of_a_lost_worker_only_its_own_homes_move_and_they_are_spread(count: int) -> None:
    slots = {f"w{number}": 2 for number in range(count)}
    before = settled(slots, {})
    del slots["w0"]
    after = settled(slots, before)
    moved = {name for name, home in before.items() if after[name] != home}
    assert moved == {name for name, home in before.items() if home == "w0"}
    assert len(moved) / CONVERSATIONS <= BOUND / count + 0.01
    assert max(Counter(after.values()).values()) <= BOUND * CONVERSATIONS / (count - 1) + 1
