"""What a piece of work leaves behind in this process.

Owns: the measurement of what was allocated in given files and lives on after a collection.
Never: judges it.
"""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watched(files: str) -> Iterator[Callable[[], int]]:
    """Gives a function: the bytes that were allocated inside the block, in files of that pattern, and are in use."""
    tracemalloc.start()
    try:
        yield lambda: _in_use_bytes(files)
    finally:
        tracemalloc.stop()


def _in_use_bytes(files: str) -> int:
    gc.collect()
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, files)])
    return sum(statistic.size for statistic in snapshot.statistics("filename"))
