"""Which queued jobs move, and that none moves for nothing."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.fleet import Fleet
from scheduler.policy.load import Load, expected_wait_ms
from scheduler.policy.placement import Home, Known
from scheduler.policy.rebalancing import (
    FEWEST_JOBS,
    LEAST_AGE_MS,
    LONGEST_LINES,
    Books,
    Move,
    Queued,
    moves,
    to_look_at,
)
from tests.unit.scheduler.policy.sites import NOW_MS, agents, fleet_of, known, worker

pytestmark = pytest.mark.unit

MARGIN_MS = 1000.0
MOST_QUEUED = 64
NAMES = ("w1", "w2", "w3")
EVEN = fleet_of(*(worker(name) for name in NAMES))


def queued(number: int, *, age_ms: int = 60_000, may_move: bool = True, job: Known | None = None) -> Queued:
    job = job or known(f"c{number}", agent=f"a{number}", prompt_tokens=100)
    return Queued(f"j{number}", job, 10_000, NOW_MS - age_ms, may_move)


def found(books: dict[str, Books], fleet: Fleet = EVEN, most_queued: int = MOST_QUEUED) -> tuple[Move, ...]:
    return moves(fleet, books, NOW_MS, MARGIN_MS, most_queued)


def line_of(count: int, first: int = 0) -> tuple[Queued, ...]:
    return tuple(queued(first + number) for number in range(count))


def test_an_idle_worker_takes_the_longest_waiting_of_those_for_whom_it_pays() -> None:
    made = found({"w1": Books((10_000.0,) * 2, line_of(3)), "w2": Books()})
    assert [(move.job.id, move.old, move.new.worker) for move in made] == [("j0", "w1", "w2"), ("j1", "w1", "w2")]


def test_nothing_moves_where_all_lines_are_alike_or_nobody_waits() -> None:
    assert found({name: Books((10_000.0,) * 2, line_of(3, 10 * n)) for n, name in enumerate(NAMES)}) == ()
    assert found({"w1": Books((10_000.0,) * 2), "w2": Books()}) == ()


def test_a_job_with_its_cache_here_moves_only_for_a_wait_longer_than_its_prefill() -> None:
    """20,000 tokens at 500 a second are 40 s."""
    mine = known("mine", prompt_tokens=20_100, home=Home("w1", 20_000, NOW_MS))
    for count, moved in ((6, False), (8, True)):
        ahead = tuple(replace(one, may_move=False) for one in line_of(count))
        made = found({"w1": Books((10_000.0,) * 2, (*ahead, queued(99, job=mine))), "w2": Books()})
        assert bool(made) is moved


@pytest.mark.parametrize(
    "stays", [queued(0, age_ms=LEAST_AGE_MS - 1), queued(0, may_move=False)], ids=["just came", "moved or a warm-up"]
)
def test_who_may_not_move_stays(stays: Queued) -> None:
    assert found({"w1": Books((10_000.0,) * 2, (stays,)), "w2": Books()}) == ()


def test_a_prompt_moves_only_where_it_fits() -> None:
    fleet = fleet_of(worker("w1", window=100_000), worker("w2", window=8_000))
    long = queued(0, job=known("c", prompt_tokens=20_000))
    assert found({"w1": Books((100_000.0,) * 2, (long,)), "w2": Books()}, fleet) == ()


def test_a_full_line_takes_no_more() -> None:
    made = found({"w1": Books((10_000.0,) * 2, line_of(12)), "w2": Books()}, most_queued=3)
    assert len(made) == 3


_jobs = st.builds(
    lambda number, agent, level, age_ms, may_move, each_ms: replace(
        queued(number, age_ms=age_ms, may_move=may_move, job=known(f"c{number}", agent=agent, level=level)),
        expected_ms=each_ms,
    ),
    st.integers(0, 10**9), agents, st.integers(0, 9), st.integers(0, 60_000), st.booleans(), st.floats(100, 60_000),
)  # fmt: skip
_books = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(
        lambda running, line, homes: Books(tuple(running), tuple(sorted(line, key=lambda j: j.known.level)), homes),
        st.lists(st.floats(0, 60_000), max_size=2),
        st.lists(_jobs, max_size=10),
        st.integers(0, 5),
    ),
)


@given(_books)
def test_each_job_moves_once_at_most_and_only_to_be_answered_sooner_by_the_margin(books: dict[str, Books]) -> None:
    made = found(books)
    assert all(count == 1 for count in Counter(id(move.job) for move in made).values())
    for move in made:
        assert move.job in books[move.old].line
        assert move.new.worker in books
        assert move.new.worker != move.old
        assert move.job.may_move
        assert NOW_MS - move.job.arrival_ms >= LEAST_AGE_MS
        assert move.cost_there_ms + MARGIN_MS < move.cost_here_ms
        line = tuple(job.ahead for job in books[move.old].line)
        whole = Load(books[move.old].running, line, len(line))
        slots = EVEN.sites[move.old].slots
        assert expected_wait_ms(whole, slots, move.job.known.level, move.job.known.agent) > 0


@given(_books)
def test_sweep_after_sweep_no_job_is_lost_or_doubled_and_soon_none_moves(books: dict[str, Books]) -> None:
    jobs = Counter(job.id for of in books.values() for job in of.line)
    sweeps = 0
    while made := found(books):
        sweeps += 1
        books = {name: _after(name, of, made) for name, of in books.items()}
        assert Counter(job.id for of in books.values() for job in of.line) == jobs
    assert sweeps <= jobs.total()


def _after(name: str, of: Books, made: tuple[Move, ...]) -> Books:
    """The line without those that left, and with those that came and may not move again."""
    gone = {id(move.job) for move in made if move.old == name}
    come = [replace(m.job, may_move=False, expected_ms=m.new.expected_ms) for m in made if m.new.worker == name]
    line = sorted([*(job for job in of.line if id(job) not in gone), *come], key=lambda job: job.known.level)
    return Books(of.running, tuple(line), of.homes + len(come))


@given(st.dictionaries(st.text(max_size=3), st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=40))
def test_of_many_workers_the_longest_lines_and_the_least_busy_are_looked_at(loads: dict[str, tuple[int, int]]) -> None:
    longest, idlest = to_look_at(loads, dict.fromkeys(loads, 2))
    assert len(longest) <= LONGEST_LINES
    assert len(idlest) == min(FEWEST_JOBS, len(loads))
    assert all(loads[name][0] for name in longest)
    most = max((sum(load) for load in loads.values() if load[0]), default=0)
    assert not longest or sum(loads[longest[0]]) == most
    assert not idlest or sum(loads[idlest[0]]) == min(sum(load) for load in loads.values())
