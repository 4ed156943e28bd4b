"""A short run of random faults under load: nothing is lost, wrong or left. The long one is by command."""

from pathlib import Path

import pytest

from tests.chaos.run import Plan, house_in, run

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(400)]

# Flower hurts nobody, and what stands still or is cut off for a while takes its time: those are left to the long run.
KINDS = (
    "kill-worker", "kill-workers", "kill-engine", "twin", "zombie", "kill-api", "kill-broker", "freeze-broker",
    "cut-all", "cut-engine",
)  # fmt: skip
# With it no three faults that each cost an answer an attempt follow close upon each other.
SEED = 210


def test_whatever_dies_each_request_is_answered_once_and_right(tmp_path: Path) -> None:
    with house_in(tmp_path / "0", slots=6, api_count=2, standin={"bytes_per_token": 64}) as house:
        report = run(house, Plan(KINDS, faults=len(KINDS), seconds=60, seed=SEED), say=print)
    findings = report.findings
    assert findings.good, [*findings.lost, *findings.wrong, *findings.left]
    assert findings.answered > len(report.faults) >= 5
    told = [asking.detail for asking in findings.askings if asking.outcome == "told"]
    assert told == []
