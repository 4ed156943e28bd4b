"""One answer: it always ends, and a broker that is away for a moment costs none."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api import answer as module
from api.answer import Answer
from api.broker_patience import BrokerPatience
from api.errors import reply_for
from api.house import House
from api.protocol.request import Call
from api.tally import Tally
from infra.config import Settings
from infra.errors import BrokerDown, CorralError, DeadlinePassed, PromptTooLong, TooSlow, WaitedTooLong, WorkerLost
from infra.observability import metrics
from scheduler.contract import Delta, Finished, Limits, Started, StopReason, TextDelta
from scheduler.share import Held

pytestmark = pytest.mark.unit

ENDS: list[Delta] = [
    Started("w1", 0, 1, 0, 3, 0),
    TextDelta("hello"),
    Finished(StopReason.END_TURN, None, 3, 0, 1, 1, 1, "hash", 1),
]
DOWN = BrokerDown("the broker does not answer")
NONE = Limits()


class Job:
    """A job as `Placed` shows it. Each thing that is asked of the broker takes what comes next from `says`."""

    worker = moved_to = "w1"
    may_use_reserve = shared = waits = False
    may_return = True
    eta_ms: int | None = None
    spec = SimpleNamespace(id="job")

    def __init__(self, *comes: list[Delta] | Exception, **says: list[Any]) -> None:
        self.comes = list(comes)
        self.says = says

    async def next(self, _: float) -> list[Delta]:
        come = self.comes.pop(0)
        if isinstance(come, Exception):
            raise come
        return come

    async def _say(self, what: str, usual: Any) -> Any:
        said = self.says.get(what)
        answer = said.pop(0) if said else usual
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def withdraw(self) -> Any:
        return await self._say("withdraw", True)

    async def vanished(self) -> Any:
        self.worker = self.moved_to
        return await self._say("vanished", False)

    async def met_window(self) -> Any:
        return await self._say("met_window", None)

    async def count(self, *_: Any) -> Any:
        return await self._say("count", SimpleNamespace(tokens=3, exact=True))

    def seen(self, *_: Any) -> None:
        """Prompts of doubles teach nothing."""


def answer(job: Job, again: int = 5, limits: Limits = NONE, **settings: Any) -> Answer:
    async def again_s(_: Any) -> int:
        return again

    infos = {"w1": (100, 90), "w2": (50, 40)}
    house = SimpleNamespace(
        settings=Settings(**settings),
        closing=SimpleNamespace(begun=False, over=False),
        tally=Tally(),
        counts=job,
        explainer=SimpleNamespace(follow=lambda *_: SimpleNamespace(feed=lambda _: None)),
        dispatcher=SimpleNamespace(
            worker=lambda name: SimpleNamespace(context_tokens=infos[name][0], prompt_limit_tokens=infos[name][1]),
            retry_after_s=lambda: 5,
            again_s=again_s,
        ),
    )
    identity = SimpleNamespace(identified=True)
    call = SimpleNamespace(asked_model="m", stream=True, request=None, identity=identity, limits=limits)
    return Answer(cast(Call, call), "req_1", cast(Held, job), cast(House, house))


async def events(made: Answer) -> list[dict[str, Any]]:
    lines = b"".join([part async for part in made.events()]).decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


# --- the end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyError("tag"), ValueError("x"), WaitedTooLong("late"), DOWN, AssertionError()])
async def test_whatever_goes_wrong_in_a_stream_is_its_last_event_and_the_answers_failure(error: Exception) -> None:
    made = answer(Job(ENDS[:2], error))
    found = await events(made)
    assert found[-1]["type"] == "error"
    assert [event["type"] for event in found].count("error") == 1
    assert isinstance(made.failure, CorralError)
    words = str(error) if isinstance(error, CorralError) else "the gateway met an unexpected error"
    assert words in found[-1]["error"]["message"]


async def test_what_came_at_once_with_the_first_piece_is_known() -> None:
    made = answer(Job([ENDS[0], *[TextDelta("a")] * 3], [TextDelta("b")], DOWN))
    await events(made)
    assert (made.pieces, made.first_pieces) == (4, 3)


async def test_nobody_comes_back_for_an_answer_that_was_lost() -> None:
    """Kept for its client's retry, it would give each of them the same beginning and never an end."""
    job = Job(ENDS[:2], [], vanished=[True])
    made = answer(job)
    await made.commit()
    assert (await events(made))[-1]["type"] == "error"
    assert isinstance(made.failure, WorkerLost)
    assert not job.may_return


@pytest.mark.parametrize(
    ("comes", "words"), [([[]], "lost with the broker's data"), ([ENDS[:2], []], "nobody could go on with it")]
)
async def test_an_answer_whose_record_is_gone_is_told_what_was_lost(comes: list[list[Delta]], words: str) -> None:
    made = answer(Job(*comes, vanished=[True]))
    with pytest.raises(WorkerLost, match=words):
        await made.whole()


async def test_an_answer_that_takes_longer_than_its_client_allows_is_over_and_not_kept() -> None:
    job = Job(ENDS[:2])
    made = answer(job, limits=Limits(total_s=1e-9))
    with pytest.raises(DeadlinePassed, match=r"not complete within 1e-09 s"):
        await made.commit()
    assert not job.may_return


async def test_an_answer_in_full_flow_is_ended_by_its_deadline_too() -> None:
    class Endless(Job):
        async def next(self, _: float) -> list[Delta]:
            return [TextDelta("more ")]

    job = Endless()
    made = answer(job, limits=Limits(total_s=0.05))
    found = await events(made)
    assert (found[-1]["type"], found[-1]["error"]["type"]) == ("error", "api_error")
    assert isinstance(made.failure, DeadlinePassed)
    assert not job.may_return


async def test_an_answer_that_does_not_begin_in_time_is_over_and_may_be_asked_for_again() -> None:
    with pytest.raises(TooSlow, match="did not begin within"):
        await answer(Job([]), limits=Limits(first_token_s=1e-9)).commit()


async def test_an_answer_that_waits_for_another_attempt_is_held_to_the_limits_of_tokens_all_the_same() -> None:
    job = Job(ENDS[:2], [])
    job.waits = True
    made = answer(job, limits=Limits(between_tokens_s=1e-9))
    begun_before = made.waits_again
    found = await events(made)
    assert (begun_before, made.waits_again) == (False, True)
    assert found[-1]["type"] == "error"
    assert isinstance(made.failure, TooSlow)


async def test_an_answer_that_has_begun_is_left_to_its_worker() -> None:
    made = answer(Job(ENDS[:1], [], ENDS[1:]), limits=Limits(first_token_s=5))
    await made.commit()
    assert (await events(made))[-1]["type"] == "message_stop"


# --- a broker that is away for a moment ---------------------------------------------------------------------------

AWAY: dict[str, Callable[[], Job]] = {
    "vanished": lambda: Job([], [], ENDS, vanished=[DOWN, DOWN]),
    "withdraw": lambda: Job([], [], ENDS, withdraw=[DOWN, DOWN]),
    "count": lambda: Job([], [], ENDS, count=[DOWN, DOWN]),
}


@pytest.mark.parametrize("asked", AWAY)
async def test_a_broker_that_is_away_for_a_moment_costs_no_answer(asked: str) -> None:
    wait_s = 1e-9 if asked == "withdraw" else 600
    early_s = 1e-9 if asked == "count" else 600
    made = answer(AWAY[asked](), wait_identified_s=wait_s, early_commit_s=early_s)
    await made.commit()
    assert [event["type"] for event in await events(made)][-1] == "message_stop"


@pytest.mark.parametrize("asked", AWAY)
async def test_a_broker_that_stays_away_ends_it(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BrokerPatience", lambda: BrokerPatience(0))
    wait_s = 1e-9 if asked == "withdraw" else 600
    early_s = 1e-9 if asked == "count" else 600
    with pytest.raises(BrokerDown):
        await answer(AWAY[asked](), wait_identified_s=wait_s, early_commit_s=early_s).commit()


@pytest.mark.parametrize(("again", "told"), [(5, 5), (600, 60), (0, 1)])
async def test_who_has_waited_in_vain_is_counted_and_told_when_to_ask_again_as_the_header_does(
    again: int, told: int
) -> None:
    made, before = answer(Job([]), again=again, wait_identified_s=1e-9), metrics.IN_VAIN._value.get()
    with pytest.raises(WaitedTooLong) as caught:
        await made.commit()
    assert caught.value.message == f"no slot came free within 1e-09 s; ask again in {told} s"
    assert reply_for(caught.value, "req_1").headers["retry-after"] == str(told)
    assert made._house.tally.in_vain == metrics.IN_VAIN._value.get() - before == 1


async def test_a_prompt_that_is_too_long_is_told_when_the_broker_is_back() -> None:
    count = SimpleNamespace(tokens=95, exact=True)
    job = Job([], [], ENDS, count=[count, count], met_window=[DOWN])
    with pytest.raises(PromptTooLong, match="95 tokens > 90"):
        await answer(job, early_commit_s=1e-9).commit()


async def test_the_reserve_counts_where_it_may_be_used() -> None:
    for tokens, fits in ((95, True), (101, False)):
        job = Job([], ENDS, count=[SimpleNamespace(tokens=tokens, exact=True)])
        job.may_use_reserve = True
        made = answer(job, early_commit_s=1e-9)
        if fits:
            await made.commit()
        else:
            with pytest.raises(PromptTooLong, match="101 tokens > 100"):
                await made.commit()


async def test_a_job_that_was_moved_is_held_against_its_new_workers_window() -> None:
    job = Job([], ENDS, count=[SimpleNamespace(tokens=45, exact=True)])
    job.moved_to = "w2"
    with pytest.raises(PromptTooLong, match="45 tokens > 40"):
        await answer(job, early_commit_s=1e-9).commit()
    job = Job([], [], ENDS)
    job.moved_to = "w2"
    made = answer(job, early_commit_s=1e-9)
    await made.commit()
    assert made.headers() == {"x-corral-worker": "w2"}


@pytest.mark.parametrize("eta_ms", [0, 1234])
async def test_the_wait_that_was_expected_is_told_beside_the_one_that_was(eta_ms: int) -> None:
    job = Job(ENDS)
    job.eta_ms = eta_ms
    made = answer(job)
    assert made.headers() == {"x-corral-worker": "w1", "x-corral-eta-ms": str(eta_ms)}
    await made.commit()
    headers = made.headers()
    assert (headers["x-corral-eta-ms"], headers["x-corral-queue-ms"]) == (str(eta_ms), "0")
