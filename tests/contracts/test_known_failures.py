"""The fifteen failures that Celery on Redis is known for, and the tests that they do not happen here."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.contracts

TESTS = Path(__file__).resolve().parents[1]
LOSS = "test_a_broker_that_is_lost_for_a_while_costs_no_answer"
STOP = "test_a_worker_that_is_stopped_waits_no_longer_than_its_drain_and_each_answer_ends_once"
KNOWN: dict[str, tuple[str, ...]] = {
    "1 a worker with a running task exits when its broker is away": (
        "test_a_worker_with_running_tasks_outlives_restarts_of_its_broker_and_serves_soon_after_each",
    ),
    "2 a worker is connected again and consumes nothing": (
        "test_a_worker_with_running_tasks_outlives_restarts_of_its_broker_and_serves_soon_after_each",
        "test_a_consumer_that_takes_nothing_is_found_by_its_missing_claims_and_its_worker_ends",
    ),
    "3 a half-open connection is not noticed": (
        "test_a_network_that_carried_nothing_for_a_minute_is_noticed_and_used_again_soon",
        "test_a_worker_ends_when_it_is_told_to_though_its_network_carries_nothing",
    ),
    "4 a long task runs again after the visibility timeout": (
        "test_an_answer_longer_than_the_visibility_timeout_is_made_once",
    ),
    "5 a connection that breaks runs its tasks again": (
        "test_connections_that_break_under_answers_make_nothing_twice",
    ),
    "6 a killed worker's messages stay hidden": (
        "test_a_killed_workers_jobs_are_taken_by_another_within_a_lease_and_two_seconds",
    ),
    "7 a popped message is never executed": (
        "test_of_a_thousand_jobs_none_is_lost_with_a_frozen_worker_that_dies_with_a_ticket",
    ),
    "8 threads cannot be cancelled, and a cold stop hangs": (
        STOP,
        "test_no_client_is_held_past_the_limits_of_its_headers",
        "test_an_engine_that_hangs_in_an_answer_is_restarted_and_the_answer_goes_on",
    ),
    "9 a warm stop loses tasks, or runs finished ones again": (STOP,),
    "10 the API hangs when its broker does": (LOSS, "test_tickets_for_a_broker_that_hangs_pile_up_no_threads"),
    "11 a failover leaves a worker that may only read": (LOSS,),
    "12 a broker without memory deadlocks its workers": (LOSS,),
    "13 reconnects cost a worker its queues, slots or memory": (
        "test_after_twenty_reconnects_a_worker_takes_exactly_its_slots_and_has_not_grown",
    ),
    "14 blocking reads end early, and writes are carried out twice": (
        "test_three_hundred_streams_outlive_a_frozen_broker_without_gap_or_repetition",
    ),
    "15 levels are ignored or counted wrong": (
        "test_tickets_are_counted_and_taken_level_by_level_and_in_the_order_in_which_they_came",
        "test_a_whole_line_is_claimed_in_the_order_that_is_told_ahead",
        "test_a_part_that_would_lay_out_the_queues_otherwise_does_not_start",
    ),
}
THERE = {name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}


def test_there_are_fifteen() -> None:
    assert [int(words.split()[0]) for words in KNOWN] == list(range(1, 16))


@pytest.mark.parametrize("failure", KNOWN)
def test_each_known_failure_has_its_tests(failure: str) -> None:
    assert set(KNOWN[failure]) <= THERE
