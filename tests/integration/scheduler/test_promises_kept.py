"""Ten times more callers than there is room for: who comes back when told is served, whoever else asks.

The scripts and the forecast are the real ones; time is virtual, so that a minute takes seconds.
"""

import random
from collections.abc import AsyncIterator, Sequence

import pytest

from scheduler.policy.admission import LONGEST_RETRY_S
from tests.doubles.broker import Broker
from tests.integration.scheduler.crowd import Caller, Crowd

pytestmark = pytest.mark.integration

PER_S = 40  # of which four can be served
SECONDS = 8
SLOTS = 4
AGENTS = 20
KEPT = 0.9
NEAR, FAR = (10, 20), (30, 600)  # longest waits without identity and with one, in s


def callers(
    anonymous: int,
    limits_s: tuple[int, int],
    levels: Sequence[int] = (5,),
    *,
    seconds: int = SECONDS,
    spread: float = 0.15,
) -> list[Caller]:
    """So many of a hundred do not say who they are. The same ones each time."""
    chance = random.Random(7)
    made = []
    for number in range(PER_S * seconds):
        identified = (number + 1) * anonymous // 100 == number * anonymous // 100
        agent = f"agent{number % AGENTS}" if identified else "anonymous"
        service_s = 0.3 + 0.7 * chance.lognormvariate(0, spread)
        limit_s = limits_s[identified]
        made.append(Caller(number, number / PER_S, agent, limit_s, service_s, chance.choice(levels)))
    return made


@pytest.fixture
async def crowd(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Crowd]:
    made = Crowd(broker, monkeypatch, SLOTS)
    yield made
    await made.close()


def share_kept(served: Sequence[Caller]) -> float:
    """Of those that were told a time that could be said."""
    told = [caller for caller in served if 0 < caller.told_s < LONGEST_RETRY_S]
    assert len(told) > 50
    return sum(caller.kept for caller in told) / len(told)


@pytest.mark.parametrize("limits_s", [NEAR, FAR])
@pytest.mark.parametrize("anonymous", [0, 50, 100])
async def test_who_comes_back_when_told_is_served(crowd: Crowd, anonymous: int, limits_s: tuple[int, int]) -> None:
    served = await crowd.serve(callers(anonymous, limits_s, seconds=12))
    assert share_kept(served) >= KEPT
    assert all(0 <= caller.waited_s <= caller.wait_limit_s for caller in served if caller.waited_s is not None)


async def test_answers_of_very_different_lengths_break_few_promises(crowd: Crowd) -> None:
    assert share_kept(await crowd.serve(callers(50, NEAR, spread=0.5))) >= KEPT


@pytest.mark.parametrize("levels", [(3, 5, 7), (5, 9)])
async def test_a_time_is_told_only_where_more_urgent_ones_leave_one(crowd: Crowd, levels: Sequence[int]) -> None:
    assert share_kept(await crowd.serve(callers(0, FAR, levels, seconds=16))) >= KEPT


async def test_the_slots_stay_at_work_for_those_who_were_promised_a_place(crowd: Crowd) -> None:
    served = await crowd.serve(callers(0, NEAR))
    started = sum(caller.waited_s is not None for caller in served)
    assert started >= 0.9 * SLOTS * (SECONDS + LONGEST_RETRY_S)
