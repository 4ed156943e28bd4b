"""What an answer used, and that it is settled however it ends."""

from typing import cast

import pytest

from infra.errors import BrokerDown, Cancelled
from scheduler.claims import Claims
from scheduler.contract import ClaimedJob, Kind, Rates, StopReason
from workers.llama.client import End
from workers.settling import Used, settled

pytestmark = pytest.mark.unit
RATES = Rates(prefill_tokens_per_s=1000, decode_tokens_per_s=50)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Accounts:
    """The books; `away`: their broker does not answer."""

    def __init__(self, *, away: bool = False) -> None:
        self.said: list[tuple[str, float, int | None, bool]] = []
        self.away = away

    def settle(self, job: ClaimedJob, used_ms: float, output_tokens: int | None, *, in_tool_call: bool) -> None:
        if self.away:
            raise BrokerDown("away", retry_after_s=5)
        self.said.append((job.id, used_ms, output_tokens, in_tool_call))


def job(kind: Kind = Kind.MAIN) -> ClaimedJob:
    return ClaimedJob("job", 1, 5, "me", "c", kind, 0, False, b"", "k", 900.0, 1)


def end(reason: StopReason = StopReason.END_TURN, output_tokens: int = 100) -> End:
    return End(reason, None, 700, 200, output_tokens, 1, 1)


def settle(used: object, accounts: Accounts, kind: Kind = Kind.MAIN) -> None:
    with settled(cast(Claims, accounts), job(kind), lambda: RATES) as account:
        if callable(used):
            used(account)


def test_service_is_the_prefill_of_new_tokens_and_the_tokens_that_came() -> None:
    used = Used()
    used.prompt(500)
    for _ in range(3):
        used.token()
    assert used.service_ms(RATES) == 500 + 60
    used.ended(end())
    assert used.service_ms(RATES) == 500 + 2000


def test_an_answer_that_the_engine_never_began_used_nothing() -> None:
    assert Used().service_ms(RATES) == 0


def test_a_prefill_that_was_cut_short_counts_for_no_longer_than_it_took() -> None:
    clock = Clock()
    used = Used(clock)
    used.prompt(5000)
    clock.now_s += 2
    assert used.service_ms(RATES) == 2000
    clock.now_s += 60
    assert used.service_ms(RATES) == 5000


def test_a_finished_answer_is_settled_with_its_length() -> None:
    accounts = Accounts()

    def answer(used: Used) -> None:
        used.prompt(500)
        used.ended(end())

    settle(answer, accounts)
    assert accounts.said == [("job", 2500, 100, False)]


def test_a_tool_call_says_that_the_agent_comes_back() -> None:
    accounts = Accounts()
    settle(lambda used: used.ended(end(StopReason.TOOL_USE)), accounts)
    assert accounts.said == [("job", 0, 100, True)]


def test_nothing_is_learnt_from_the_length_of_a_warm_up() -> None:
    accounts = Accounts()
    settle(lambda used: used.ended(end(output_tokens=1)), accounts, Kind.WARM)
    assert accounts.said == [("job", 0, None, False)]


def test_an_answer_that_was_cancelled_is_settled_and_its_length_is_not_learnt() -> None:
    accounts = Accounts()

    def cancelled(used: Used) -> None:
        used.prompt(0)
        used.token()
        raise Cancelled("left")

    with pytest.raises(Cancelled):
        settle(cancelled, accounts)
    assert accounts.said == [("job", 20, None, False)]


def test_a_broker_that_is_away_ends_no_answer() -> None:
    settle(lambda used: used.ended(end()), Accounts(away=True))


def test_a_broker_that_is_away_hides_no_error() -> None:
    def cancelled(_: Used) -> None:
        raise Cancelled("left")

    with pytest.raises(Cancelled):
        settle(cancelled, Accounts(away=True))
