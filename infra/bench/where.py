"""Where the time to the first token goes, from the marks that API and worker tell at the debug level.

Owns: joining the marks of one job and the names of the ways between them.
Never: makes a mark. All processes must run on one machine: only there do they share a clock.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from infra.bench.report import Figures

# From one mark to a later one, in the order of a request's way.
WAYS = (
    ("receive the body", "arrived", "received"),
    ("parse, normalise, pack", "received", "parsed"),
    ("look up the home", "parsed", "placed"),
    ("store, admit", "placed", "admitted"),
    ("pick-up by Celery", "admitted", "picked_up"),
    ("claim", "picked_up", "claimed"),
    ("unpack", "claimed", "unpacked"),
    ("take a slot, render", "unpacked", "rendered"),
    ("engine: prompt known", "rendered", "prompt"),
    ("engine: first token", "prompt", "token"),
    ("relay to the API", "token", "content"),
    ("all of it", "arrived", "content"),
)


def stage_medians_ms(logs: Path) -> Figures:
    """way -> median in ms over all jobs whose marks are complete; `jobs` says how many those were."""
    needed = {mark for _, *pair in WAYS for mark in pair}
    jobs = [marks for marks in _marks(logs).values() if needed <= marks.keys()]
    if not jobs:
        return {"jobs": 0}
    medians = {way: median(marks[end] - marks[start] for marks in jobs) for way, start, end in WAYS}
    return {"jobs": len(jobs)} | {way: round(value * 1000, 2) for way, value in medians.items()}


def _marks(logs: Path) -> Mapping[str, dict[str, float]]:
    jobs: dict[str, dict[str, float]] = defaultdict(dict)
    for line in _lines(logs):
        jobs[line["job"]] |= {name: value for name, value in line.items() if isinstance(value, float)}
    return jobs


def _lines(logs: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(logs.glob("*.log")):
        for text in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if '"event": "stages"' in text:
                yield json.loads(text)
