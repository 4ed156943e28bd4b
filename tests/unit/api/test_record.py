"""What is told of a request that has not ended."""

from time import monotonic
from types import SimpleNamespace
from typing import cast

import pytest

from api.answer import Answer
from api.ledger import Ledger
from api.record import Record

pytestmark = pytest.mark.unit


def told(for_s: float, pieces: int, first_pieces: int) -> Record:
    answer = SimpleNamespace(job_id="j", worker="w1", shared=True, eta_ms=None, started=None, finished=None)
    answer.waits_again = True
    answer.explanation = SimpleNamespace(account=None)
    answer.first_s, answer.pieces, answer.first_pieces = monotonic() - for_s, pieces, first_pieces
    record = Record("req_1", Ledger())
    record.answer = cast(Answer, answer)
    return record


def test_the_speed_of_an_answer_is_that_of_what_came_after_its_first_piece() -> None:
    """Whoever joins is told at once all that was there: that is nobody's speed."""
    live = told(1000, 5000, 4000).live()
    assert (live["told"], live["per_s"], live["waits_again"]) == (5000, 1.0, True)


@pytest.mark.parametrize("pieces", [1, 50])
def test_an_answer_that_has_just_begun_has_no_speed_yet(pieces: int) -> None:
    """What came together in its first moment would be thousands of tokens a second, or none."""
    live = told(0.01, pieces, 1).live()
    assert live["told"] == pieces
    assert "per_s" not in live
