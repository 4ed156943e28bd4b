"""What a request that would wait too long is told."""

import pytest

from infra.errors import Refused
from scheduler.contract import Identity, JobSpec, Kind, PackedRequest
from scheduler.forecast import refusal
from scheduler.promises import Verdict

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("wait_ms", "when"),
    [
        (41_300, "in about 41 s,"),
        (3_600_000, "in about 3600 s,"),
        (3_600_001, "in an hour at the earliest,"),
        (10**9, "in an hour at the earliest,"),
    ],
)
def test_a_wait_that_nobody_can_foresee_is_not_told_to_the_second(wait_ms: int, when: str) -> None:
    who = Identity(key_name="k", agent="a", session=None, conversation="c", kind=Kind.MAIN, identified=True)
    request = PackedRequest("m", b"", 0, b"", greedy=False)
    spec = JobSpec(id="j", identity=who, level=5, wait_limit_ms=30_000, request=request)
    error = refusal(spec, Verdict(comes_in=False, wait_ms=wait_ms, retry_after_s=60))
    assert isinstance(error, Refused)
    assert error.message == (f"a slot is expected {when} and this request may wait for 30 s; ask again in 60 s")
