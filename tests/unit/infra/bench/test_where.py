"""The marks of API and worker are joined by job; a job with marks missing does not count."""

import json
from pathlib import Path

import pytest

from infra.bench.where import WAYS, stage_medians_ms

pytestmark = pytest.mark.unit

MARKS = list(dict.fromkeys(mark for _, *pair in WAYS[:-1] for mark in pair))
API_MARKS = {"arrived", "received", "parsed", "placed", "admitted", "content"}


def write(folder: Path, job: str, step_s: float, *, without: str = "") -> None:
    marks = {mark: 100 + number * step_s for number, mark in enumerate(MARKS) if mark != without}
    for part, its in (("api", API_MARKS), ("worker", set(MARKS) - API_MARKS)):
        line = {"event": "stages", "job": job} | {mark: value for mark, value in marks.items() if mark in its}
        with (folder / f"{part}.log").open("a") as log:
            log.write(f"a line of something else\n{json.dumps(line)}\n")


def test_each_way_is_the_median_over_jobs(tmp_path: Path) -> None:
    for number, step_s in enumerate((0.001, 0.002, 0.009)):
        write(tmp_path, f"job{number}", step_s)
    figures = stage_medians_ms(tmp_path)
    assert figures["jobs"] == 3
    assert figures["claim"] == pytest.approx(2)
    assert figures["all of it"] == pytest.approx(2 * (len(MARKS) - 1))


def test_a_job_with_a_mark_missing_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, "cut", 0.001, without="token")
    assert stage_medians_ms(tmp_path) == {"jobs": 0}
