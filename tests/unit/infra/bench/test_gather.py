"""What the rounds of `gather` and the load of `coalesce` count."""

import pytest

from infra.bench import coalesce, gather
from infra.bench.coalesce_clients import Answer

pytestmark = pytest.mark.unit

FINE = Answer(asked_s=10.0, first_s=10.5, last_s=11.0, text="said", tail="")
REFUSED = Answer(asked_s=10.0, first_s=0.0, last_s=0.0, text=None, tail="529")


def test_refusals_are_no_fast_answers() -> None:
    answers = [FINE, FINE, *[REFUSED] * 8]
    gathered, load = gather.side_figures([answers]), coalesce.load_figures(answers)
    assert (gathered["failed"], load["errors"]) == (8, ["529"] * 3)
    for found in (gathered, load):
        assert found["per_s"] == 2.0
        assert found["whole_ms"]["mean"] == 1000.0


def test_where_nobody_was_answered_no_time_is_told() -> None:
    assert gather.side_figures([[FINE], [REFUSED]]) == {"failed": 1}
    assert coalesce.load_figures([REFUSED]).keys() == {"different", "errors"}
