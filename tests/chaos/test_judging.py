"""The judge of the chaos suite finds what it is there to find."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.acceptance.wire import Event
from tests.chaos.crowd import CLIENTS, pass_through
from tests.chaos.faults import Fault
from tests.chaos.house import House
from tests.chaos.judge import Asking, Expected, percentile, said_in_vain, verdict
from tests.chaos.run import ASKED_AGAIN, recovery_s, told_too_soon, unexplained
from tests.chaos.soak import Sample, slopes

pytestmark = pytest.mark.unit

CALL = Expected("one two", calls=(("Bash", {"command": "ls"}),))


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[Event]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def told(text: str = "one two", calls: int = 1, reason: str = "tool_use") -> Asking:
    """An answer of this text and as many calls, to its end."""
    events: list[Event] = [{"type": "message_start"}]
    events += block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": text})
    for number in range(calls):
        delta = {"type": "input_json_delta", "partial_json": '{"command": "ls"}'}
        events += block(number + 1, {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {}}, delta)
    events += [{"type": "message_delta", "delta": {"stop_reason": reason}}, {"type": "message_stop"}]
    return Asking("somebody", 0.0, "whole", events=events)


def test_the_undisturbed_answer_is_right() -> None:
    assert verdict(told(), CALL) == ""


@pytest.mark.parametrize(
    "asking", [told(calls=2), told(calls=0), told(text="one two two"), told(text="one"), told(reason="end_turn")]
)
def test_anything_else_is_wrong(asking: Asking) -> None:
    assert verdict(asking, CALL)


def test_events_out_of_order_are_wrong() -> None:
    asking = told()
    asking.events[1], asking.events[2] = asking.events[2], asking.events[1]
    assert "out of order" in verdict(asking, CALL)


def test_what_broke_off_may_only_have_told_a_beginning() -> None:
    begun, false = told(), told(text="one three")
    begun.events, false.events = begun.events[:3], false.events[:3]
    assert said_in_vain(begun, CALL) == ""
    assert said_in_vain(false, CALL)


def test_a_stream_breaks_only_with_its_api() -> None:
    broken = Asking("somebody", 10.0, "broken", ended_s=12.0)
    assert unexplained([broken], [Fault("kill-api", "api0", 11.0, 13.0)]) == []
    others = [("kill-worker", "w1", 11.0), ("kill-api", "api0", 13.0), ("kill-api", "api1", 11.0)]
    for kind, what, at_s in others:
        assert unexplained([broken], [Fault(kind, what, at_s, at_s + 2)])


def test_an_answer_is_told_as_lost_only_after_as_many_faults_as_it_has_attempts() -> None:
    told = Asking("somebody", 10.0, "told", detail="the worker died", ended_s=30.0)
    kills = [Fault("kill-worker", "w1", at_s, at_s) for at_s in (12.0, 20.0, 28.0)]
    assert told_too_soon([told], kills) == []
    assert told_too_soon([told], kills[:2])
    assert told_too_soon([told], [*kills[:2], Fault("kill-worker", "w1", 31.0, 31.0)])
    told.detail = f"the engine was lost; {ASKED_AGAIN}"
    assert told_too_soon([told], []) == []


def test_recovery_lasts_until_the_last_of_those_who_were_kept_waiting_hears_something() -> None:
    untouched = Asking("a", 0.0, "whole", heard_s=[number / 10 for number in range(200)], ended_s=20.0)
    kept = Asking("b", 0.0, "whole", heard_s=[0.1, 9.9, 10.2, 14.0, 14.1], ended_s=14.2)
    kill = Fault("kill-worker", "w1", 10.0, 10.0)
    assert recovery_s(kill, [untouched]) == 0
    assert recovery_s(kill, [untouched, kept]) == pytest.approx(4.0)


def test_percentiles() -> None:
    assert [percentile([3, 1, 2], share) for share in (0, 0.5, 0.95)] == [1, 2, 3]


def test_what_rises_after_the_warm_up_is_found() -> None:
    def sample(at: int) -> Sample:
        values: dict[str, float] = {
            "api MiB": 100 + at,
            "w1 MiB": 100 + min(at, 10),
            "api threads": 9,
            "api objects": 90_000 + 20 * at,
        }
        return Sample(at, values)

    found = {slope.name: slope.good for slope in slopes([sample(at) for at in range(100)])}
    assert found == {"api MiB": False, "w1 MiB": True, "api threads": True, "api objects": False}


def test_a_crowd_that_nobody_answers_is_no_crowd_that_passed_through() -> None:
    nobody = cast(House, SimpleNamespace(url="http://127.0.0.1:1"))
    with pytest.raises(AssertionError, match="ConnectError"):
        pass_through(nobody, lambda _: None, conversations=2 * CLIENTS)
