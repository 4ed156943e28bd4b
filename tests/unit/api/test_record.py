"""What is told of a request that has not ended."""

from time import monotonic
from types import SimpleNamespace
from typing import cast

import pytest

from api.answer import Answer
from api.ledger import Ledger
from api.record import Record

pytestmark = pytest.mark.unit


def test_the_speed_of_an_answer_is_that_of_what_came_after_its_first_piece() -> None:
    """Whoever joins is told at once all that was there: that is nobody's speed."""
    answer = SimpleNamespace(job_id="j", worker="w1", shared=True, eta_ms=None, started=None, finished=None)
    answer.waits_again = True
    answer.explanation = SimpleNamespace(account=None)
    answer.first_s, answer.pieces, answer.first_pieces = monotonic() - 1000, 5000, 4000
    record = Record("req_1", Ledger())
    record.answer = cast(Answer, answer)
    assert (record.live()["told"], record.live()["per_s"], record.live()["waits_again"]) == (5000, 1.0, True)
