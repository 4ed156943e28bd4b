"""The bench's own routers do what their names say, and a fixed slot has one conversation only."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.bench.agents_routing import ANY_SLOT, LeastLoaded, Pinned, Place, RoundRobin
from infra.bench.agents_session import SUBAGENT_TURNS, Kind
from tests.unit.infra.bench.talks import shape, talk

pytestmark = pytest.mark.unit


def test_round_robin_takes_turns_whoever_asks() -> None:
    policy = RoundRobin()
    assert [policy.place(talk(), [9, 0, 0]).engine for _ in range(6)] == [0, 1, 2, 0, 1, 2]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_least_loaded_takes_one_with_the_fewest_running(running: list[int]) -> None:
    place = LeastLoaded().place(talk(), running)
    assert running[place.engine] == min(running)
    assert place.slot == ANY_SLOT


def test_least_loaded_takes_turns_among_equals() -> None:
    policy = LeastLoaded()
    assert Counter(policy.place(talk(), [1, 1]).engine for _ in range(10)) == {0: 5, 1: 5}


@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 3), st.integers(0, 2), st.integers(1, 8))
def test_pinned_gives_each_conversation_a_slot_of_its_own_while_they_suffice(
    agents: int, engines: int, subagents: int, sides: int, slots: int
) -> None:
    policy = Pinned(shape(agents=agents, subagents=subagents, sides=sides), engines, slots)
    lines = [talk(Kind.MAIN, agent) for agent in range(agents)]
    lines += [talk(Kind.SUBAGENT, agent, number) for agent in range(agents) for number in range(subagents)]
    places = [policy.place(line, [0] * engines) for line in lines]
    assert [place.engine for place in places] == [line.agent % engines for line in lines]
    scratch = {policy.place(talk(Kind.SIDE, agent), [0] * engines) for agent in range(agents if sides else 0)}
    if policy.fixed:
        assert len({*places} | scratch) == len(places) + len(scratch)
        assert all(0 <= place.slot < slots for place in [*places, *scratch])
    else:
        assert {place.slot for place in [*places, *scratch]} == {ANY_SLOT}


def test_eight_agents_fill_two_engines_of_four_slots_and_nine_do_not() -> None:
    assert Pinned(shape(agents=8), 2, 4).fixed
    assert Pinned(shape(agents=8), 2, 4).place(talk(Kind.MAIN, 7), [0, 0]) == Place(1, 3)
    assert not Pinned(shape(agents=9), 2, 4).fixed


def test_the_requests_of_an_arm_are_counted_ahead() -> None:
    assert shape(agents=2, turns=3, subagents=1, sides=4).requests == 2 * (3 * 5 + SUBAGENT_TURNS)
