"""When an engine that failed is started again, and when its worker counts as sick.

Owns: which failures are counted as one row, the pause after each, and from which one on the engine is flapping.
Never: starts or ends anything.

A worker is sick when its engine failed again and again soon after each start: every start would take jobs and lose
them. It then rests longer, without an engine and so without jobs, and the next start is the trial that makes it well.
"""

FIRST_S = 0.5
LONGEST_S = 30.0
MEMORY_S = 5.0  # whoever else uses the memory needs a moment to give it back
SICK_FIRST_S = 60.0
SICK_LONGEST_S = 600.0
HEALTHY_AFTER_S = 60.0
HEALTHY_AFTER_HANG_S = 600.0  # a hang is seen late: a life that ended so was healthy for less than it lasted


def row(before: int, ready_s: float | None, *, seen_late: bool) -> int:
    """Failures in a row, this one included. `ready_s` is how long the engine was ready, None: it never was."""
    healthy_s = HEALTHY_AFTER_HANG_S if seen_late else HEALTHY_AFTER_S
    return 1 if ready_s is not None and ready_s >= healthy_s else before + 1


def sick(failures: int, after: int) -> bool:
    return failures >= after


def pause_s(failures: int, after: int, *, memory: bool = False) -> float:
    """Seconds until the next start: 0.5, 1, 2 ... 30; from the `after`-th failure in a row on 60, 120 ... 600.

    After one for want of `memory` it is at least 5.
    """
    if sick(failures, after):
        return min(SICK_LONGEST_S, SICK_FIRST_S * 2.0 ** min(failures - after, 16))
    pause = min(LONGEST_S, FIRST_S * 2.0 ** min(failures - 1, 16))
    return max(pause, MEMORY_S) if memory else pause
