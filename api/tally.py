"""What one API process counts of its own requests.

Owns: the counters that /v1/status shows beside those of the scheduler.
Never: says what a count means (`health` and the command line do), writes it anywhere.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """`in_vain`: callers that were let in and told to ask again after their whole wait."""

    in_vain: int = 0
