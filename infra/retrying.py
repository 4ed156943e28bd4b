"""Asking again, for questions that may be repeated.

Owns: how often, and the pauses in between: they double, and chance spreads those who fail together.
Never: decides what may be repeated; the caller asks only for what changes nothing.
"""

import random
import time
from collections.abc import Callable, Iterator

TRIES = 3
FIRST_PAUSE_S = 0.3


def tries(sleep: Callable[[float], None] = time.sleep, chance: Callable[[], float] = random.random) -> Iterator[bool]:
    """One entry for each try, after its pause of half to whole 0.3, 0.6 ... s; True for the last."""
    for number in range(TRIES):
        if number:
            sleep(FIRST_PAUSE_S * 2.0 ** (number - 1) * (0.5 + chance() / 2))
        yield number == TRIES - 1
